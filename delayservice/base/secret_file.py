"""Makes files of a node's state folder that only the node's user can read."""

from __future__ import annotations

import os
from pathlib import Path


def make_secret_file(path: Path, text: str) -> None:
    """Write a file that was not there. After a full disk or a crash it holds all of the text or is
    not there: a part of a secret could be guessed.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(unfinished, flags, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # records are signed with it from now on
    finally:
        os.close(folder)
