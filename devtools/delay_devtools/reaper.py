"""Remove FOLDER when the owner, the process that started this one, has died for any reason:
``python -I -S reaper.py OWNER_PID FOLDER``.
"""

import os
import select
import shutil
import sys
import time
from pathlib import Path

_TRIES = 100


def main() -> None:
    owner_pid, folder = int(sys.argv[1]), Path(sys.argv[2])
    if os.getppid() == owner_pid:
        select.select([os.pidfd_open(owner_pid)], [], [])
    # The owner's children die with it, and may write for a moment.
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
