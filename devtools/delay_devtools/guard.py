"""Become a program that the kernel kills when its parent dies: ``python -I -S guard.py PARENT_PID
PROGRAM…``.

It is a program and not a ``preexec_fn``, which is unsafe in a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(1)
    os.execvp(program[0], program)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
