"""Lets a supervisor end the ZooKeeper session of a worker process that has died.

Otherwise the worker's notes stay until the session timeout, and nobody takes its slices over. That
the session ends too early can't do harm: a take-over fences former writers in any case.
"""

from __future__ import annotations

import ctypes
import struct
from multiprocessing.context import BaseContext
from typing import Final

from delayservice.config.cluster import ZooKeeper
from ha.kazoo_client import connected

# Id and password of a session; id 0: there was no session yet.
_LAYOUT: Final = struct.Struct(">q16s")


class SharedSession:
    """Id and password of a worker's present session, in memory shared with its supervisor. They are
    never logged: who knows them can end the session.
    """

    def __init__(self, context: BaseContext) -> None:
        self._memory = context.RawArray(ctypes.c_char, _LAYOUT.size)

    def note(self, session_id: int, password: bytes) -> None:
        self._memory.raw = _LAYOUT.pack(session_id, password)

    def end(self, options: ZooKeeper) -> bool:
        """End the session, in the supervisor, after the worker process has died; return False if
        there was none. A session that has ended already, or was noted by half, is left alone.
        """
        session_id, password = _LAYOUT.unpack(self._memory.raw)
        if not session_id:
            return False
        # A client that resumes the session, and ends it as its own.
        with connected(options, (session_id, password)):
            return True
