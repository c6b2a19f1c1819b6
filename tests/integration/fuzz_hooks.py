"""Loaded by schemathesis: counts the answers."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

TALLY = "FUZZ_TALLY"
"""Variable: file that gets a line ``STATUS METHOD PATH`` for each answer; 0: there was none."""


def _note(status: int, case: Any) -> None:  # its types are its own
    with open(os.environ[TALLY], "a", encoding="utf-8") as tally:  # noqa: PTH123
        tally.write(f"{status} {case.operation.method.upper()} {case.operation.path}\n")


@schemathesis.hook
def after_call(_: Any, case: Any, response: Any) -> None:
    """An answer has come."""
    _note(response.status_code, case)


@schemathesis.hook
def after_network_error(_: Any, case: Any, __: Any) -> None:
    """None has come."""
    _note(0, case)
