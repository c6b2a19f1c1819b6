"""Program that runs a Spark command as a job on a Spark cluster.

    spark-submit --master spark://host:7077 --packages … delayservice/commands/spark_job.py audit …
    python -m delayservice.commands.spark_job report …

The commands and their options are those of ``delayservice spark``; ``docs/spark.md`` says what the
executors need.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    _make_importable()
    from delayservice.commands.console import log_to_stderr  # noqa: PLC0415  # not before the path is right
    from delayservice.commands.spark import app  # noqa: PLC0415  # as above

    log_to_stderr()
    app(prog_name="job.py")


def _make_importable() -> None:
    # Replace this script's folder in ``sys.path`` by that of the packages: its modules would hide
    # some of the standard library, such as ``inspect``.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    sys.path.insert(0, str(here.parents[1]))


if __name__ == "__main__":
    main()
