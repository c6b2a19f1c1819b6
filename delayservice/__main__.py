"""``python -m delayservice``."""

from delayservice.cli import main

main()
