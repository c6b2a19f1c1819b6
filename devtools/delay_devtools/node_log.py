from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

_TAIL_BYTES: Final = 64 * 1024


class NodeLog:
    """Reader of a node's JSON log from ``start`` on; ``keep``: values of ``message``, empty for
    all.
    """

    def __init__(self, path: Path, start: int = 0, keep: Collection[str] = ()) -> None:
        self._path = path
        self._read_to = start
        self._keep = keep
        self._lines: list[dict[str, Any]] = []

    def lines(self, *names: str) -> list[dict[str, Any]]:
        self.read_on()
        return [line for line in self._lines if not names or line.get("message") in names]

    def read_on(self) -> list[dict[str, Any]]:
        # An incomplete line is read with the next call. Lines that are no JSON objects are skipped.
        before = len(self._lines)
        if self._path.exists():
            with self._path.open("rb") as log:
                log.seek(self._read_to)
                for raw in log:
                    if not raw.endswith(b"\n"):
                        break  # being written
                    self._read_to += len(raw)
                    self._take(raw)
        return self._lines[before:]

    def _take(self, raw: bytes) -> None:
        if self._keep and not any(name.encode() in raw for name in self._keep):
            return
        try:
            line = json.loads(raw)
        except ValueError:
            return  # a traceback, or a line that was torn by a kill
        if isinstance(line, dict) and (not self._keep or line.get("message") in self._keep):
            self._lines.append(line)


def tail(path: Path, lines: int = 15, start: int = 0) -> str:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - _TAIL_BYTES))
            found = file.read().decode(errors="replace").splitlines()
    except OSError as exc:
        return f"(unreadable: {exc})"
    return "\n".join(found[-lines:]) or "(empty)"
