"""Starts PySpark's daemon, which forks the Python workers, without a costly step before each task.

Before each task, a worker of Spark 4.0 invalidates Python's caches of importable modules (changed
by SPARK-54744). Python 3.11 then reads the directories of all archives on the path again at once
(CPython issue 103200, solved in 3.12): 0.35 s of CPU time for the jars of the connector to Kafka.
The archives don't change while a session lives, so this module leaves them as they were read.
"""

from __future__ import annotations

import sys
from zipimport import zipimporter

from pyspark.daemon import manager

if __name__ == "__main__":
    if sys.version_info < (3, 12):
        zipimporter.invalidate_caches = lambda _self: None  # type: ignore[assignment]
    manager()  # type: ignore[no-untyped-call]
