"""Clean up after an owner, the process that started this one, when it dies:
``python -I reaper.py OWNER_PID FOLDER``.

It runs in a session of its own and reads commands from its standard input, one per line:

    watch PID START     a child to be killed; START tells it from a later process of that number
    forget PID          a child that has been stopped
    dismiss             the owner has cleaned up itself

When the owner dies for any reason, the children are killed with SIGKILL and FOLDER is removed
(an empty FOLDER means that it is kept). Standard library only, so that it starts in milliseconds.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
from pathlib import Path

_KILL_SECONDS_MAX = 10


def start_time(pid: int) -> str | None:
    # Part of a process's identity. Without /proc only the number identifies it.
    if not Path("/proc/self/stat").exists():
        return "unknown"
    try:
        # The command name may hold blanks and brackets, so fields are counted from its end;
        # the start time is field 22 of proc(5).
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _commands(owner_pid: int) -> list[list[str]]:
    # Not only the end of the input ends the wait: a process forked by the owner may hold the pipe
    # open.
    waiting = [sys.stdin.fileno()]
    with contextlib.suppress(OSError, AttributeError):
        waiting.append(os.pidfd_open(owner_pid))
    received = b""
    while True:
        ready, _, _ = select.select(waiting, [], [])
        chunk = os.read(waiting[0], 65536) if waiting[0] in ready else b""
        received += chunk
        if not chunk or received.endswith(b"dismiss\n"):
            break
    return [line.split() for line in received.decode().splitlines()]


def _left_over(commands: list[list[str]]) -> dict[int, str]:
    watched: dict[int, str] = {}
    for verb, *words in commands:
        if verb == "watch":
            watched[int(words[0])] = words[1]
        elif verb == "forget":
            watched.pop(int(words[0]), None)
    return watched


def _kill(pid: int, started: str) -> None:
    # With another start time, the number belongs to another process by now.
    if start_time(pid) != started:
        return
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([descriptor], [], [], _KILL_SECONDS_MAX)
        return
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    owner_pid, folder = int(sys.argv[1]), sys.argv[2]
    commands = _commands(owner_pid)
    if commands and commands[-1] == ["dismiss"]:
        return
    for pid, started in _left_over(commands).items():
        _kill(pid, started)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
