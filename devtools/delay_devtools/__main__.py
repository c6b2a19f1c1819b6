"""``python -m delay_devtools``: the same command line as ``delayservice``."""

from delayservice.__main__ import main

if __name__ == "__main__":
    main()
