"""Describes failures of Spark in one sentence, and verdicts of jobs as exit status."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

# Exceptions that a failed Spark job raises; Py4JJavaError where PySpark has no class of its own.
FAILURES: Final = (PySparkException, Py4JJavaError)

EXIT_FINDINGS: Final = 3
EXIT_UNJUDGED: Final = 4

_TRACEBACK: Final = "Traceback (most recent call last)"
# Beginning of the line of a traceback that names the error; it is the only line without
# indentation.
_ERROR: Final = re.compile(r"[A-Za-z_][\w.]*(?:: |$)")
_CHARS_MAX: Final = 500


def reason(exc: PySparkException | Py4JJavaError) -> str:
    """Return the innermost cause of a failure, of Java or of a Python worker, as one line."""
    text = _innermost(exc) if isinstance(exc, Py4JJavaError) else str(exc)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(exc).__name__
    if _TRACEBACK in text:
        own = [line for line in text.rpartition(_TRACEBACK)[2].splitlines() if _ERROR.match(line)]
        return (own or lines)[0][:_CHARS_MAX]
    return lines[0][:_CHARS_MAX]


def _innermost(exc: Py4JJavaError) -> str:
    cause = exc.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString())


def exit_status(findings: int, unjudged: int) -> int:
    """Return 3 if there are findings, else 4 if something was not judged, else 0."""
    if findings:
        return EXIT_FINDINGS
    return EXIT_UNJUDGED if unjudged else 0
