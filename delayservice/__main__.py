"""Entry point of the command ``delayservice``, also as ``python -m delayservice``."""

import sys
from importlib.util import find_spec

from delayservice.commands.extras import how_to_install

NEEDED = ("typer", "pydantic", "rocksdict")
"""Some of the packages that the extra ``node`` installs; without them no command runs."""


def main() -> None:
    """Run the command line; end with status 2 if only the client's packages are installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        needed = f"delayservice needs {', '.join(missing)}, which is not installed"
        sys.stderr.write(f"error: {needed}: {how_to_install('node')}\n")
        sys.exit(2)
    from delayservice.cli import app  # noqa: PLC0415 (imports these packages)
    from delayservice.commands.console import log_to_stderr  # noqa: PLC0415 (as above)

    log_to_stderr()
    app(prog_name="delayservice")


if __name__ == "__main__":
    main()
