from __future__ import annotations

from pyspark.errors import AnalysisException, PythonException

from connectors.spark.common.session import reason

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "row_check.py", line 71, in judged
    judge = Judge(rules)
delayservice.contract.contracts.ContractError: max_delay_ms is -1: it must be 0 to 4503599627370496
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
"""


def test_of_a_worker_s_traceback_only_the_error_is_told() -> None:
    expected = (
        "delayservice.contract.contracts.ContractError: max_delay_ms is -1: it must be 0 to 4503"
    )
    assert reason(PythonException(WORKER)).startswith(expected)


def test_of_several_lines_the_first_is_told() -> None:
    assert reason(AnalysisException("\n[PATH_NOT_FOUND] /nowhere\nat a.b.C\n")) == (
        "[PATH_NOT_FOUND] /nowhere"
    )


def test_an_error_without_words_is_told_by_its_name() -> None:
    assert reason(PythonException("")) == "PythonException"
