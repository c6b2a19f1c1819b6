"""A wall clock that can be stepped while a process runs, by libfaketime; elapsed time goes on."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

_LIBRARY: Final = "libfaketimeMT.so.1"
_FOLDERS: Final = ("/usr/lib", "/usr/local/lib")
_SLEEP: Final = Path(__file__).parent / "faked_sleep"


@functools.cache
def _library() -> Path | None:
    found = (path for folder in _FOLDERS for path in Path(folder).glob(f"**/faketime/{_LIBRARY}"))
    return next(found, None)


def clock_missing() -> str:
    """Why no clock can be stepped here; empty when it can."""
    return "" if _library() else "needs the Debian package faketime: make fault-tools"


class WallClock:
    """The wall clock of one node.

    Args:
        file: says how far it is from the machine's; read at every look at the clock.
        offset_s: how far it is at first.
    """

    def __init__(self, file: Path, offset_s: float = 0.0) -> None:
        self._file = file
        self.set(offset_s)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to have this clock."""
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": str(_SLEEP),
        }

    def set(self, offset_s: float) -> None:
        """Set it so far from the machine's clock, at once: a step, not a slew."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset_s:+.3f}\n", "utf-8")
        fresh.replace(self._file)
