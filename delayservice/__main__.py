"""Entry point of ``python -m delayservice``, which runs the command line."""

from delayservice.cli import main

main()
