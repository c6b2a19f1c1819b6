"""A disk that is soon full: a small tmpfs. Needs root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final, Self

_CHUNK: Final = b"\xff" * 65_536


def disk_missing() -> str:
    """Return why this machine can't mount a small disk; empty: it can."""
    return "" if os.geteuid() == 0 else "mounting a small disk needs root"


class SmallDisk:
    """File system of the given size in MiB, mounted on ``folder``."""

    def __init__(self, folder: Path, mebibytes: int) -> None:
        self.folder = folder
        self._options = f"size={mebibytes}m,mode=0700"
        self._ballast = folder / "ballast"

    def __enter__(self) -> Self:
        """Mount the file system."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", self._options, "faults", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return self

    def __exit__(self, *_: object) -> None:
        """Unmount it; lazily, should a process still be ending in it."""
        command = ["umount", "--lazy", str(self.folder)]
        subprocess.run(command, capture_output=True, check=False)

    def fill(self) -> None:
        """Fill the disk with a file until no byte is free."""
        with self._ballast.open("ab", buffering=0) as ballast:
            try:
                while ballast.write(_CHUNK):
                    pass
            except OSError:
                return

    def free(self) -> None:
        """Remove the file of ``fill``."""
        self._ballast.unlink(missing_ok=True)
