"""Clocks of a process that can be stepped while it runs, or show that its machine was suspended."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_suffix(".c")
_NS: Final = 1_000_000_000


def clock_missing() -> str:
    """Return why clocks can't be stepped on this machine; empty: they can."""
    return "" if shutil.which("cc") else "needs a C compiler: make fault-tools"


class WallClock:
    """Wall clock of one node.

    Args:
        file: says how far it is from the machine's; the library is built beside it.
        offset_s: how far it is at first.
    """

    def __init__(self, file: Path, offset_s: float = 0.0) -> None:
        self._file = file
        self._library = file.with_suffix(".so")
        build = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(self._library)]
        subprocess.run([*build, str(_SOURCE), "-ldl"], check=True)
        self._file.write_bytes(bytes(16))
        self.set(offset_s)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables with which a process has this clock."""
        return {"LD_PRELOAD": str(self._library), "WALLCLOCK_FILE": str(self._file)}

    def set(self, offset_s: float) -> None:
        """Step the clock to this distance from the machine's clock, at once."""
        self._write(0, offset_s)

    def suspend(self, total_s: float) -> None:
        """Let the monotonic clock have stood still for this time in all."""
        self._write(8, total_s)

    def _write(self, at: int, value_s: float) -> None:
        with self._file.open("r+b", buffering=0) as file:
            file.seek(at)
            file.write(struct.pack("=q", round(value_s * _NS)))
