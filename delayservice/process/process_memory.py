"""Memory use of this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def memory_bytes() -> int:
    """Return the resident memory of this process in bytes; 0: the system has no such figure."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
