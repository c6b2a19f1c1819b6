"""Tokens from a function of the user's, in one client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from delayservice.base.tokens import TokenSource

TOKEN = "eyJhbGciOiJub25lIn0.e30."  # noqa: S105  # an example
NEXT: list[Callable[[], Any]] = []


def make(_config: str) -> Any:
    return NEXT.pop(0)()


def broken() -> None:
    raise ValueError(TOKEN)


@pytest.mark.parametrize(
    "made",
    [
        broken,
        lambda: TOKEN,
        lambda: (time.time() + 60, TOKEN),
        lambda: (TOKEN, time.time() - 1),
        lambda: (TOKEN, 1_000 * time.time() + 60_000),
    ],
)
def test_what_is_no_token_keeps_a_client_waiting_and_is_not_logged(
    made: Callable[[], Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program that has set up its logs drops what a client repeats.
    monkeypatch.setattr(logging.getLogger("librdkafka"), "filters", [])
    NEXT[:] = [made, lambda: (TOKEN, time.time() + 60, "principal"), made]
    tokens = TokenSource(f"{__name__}:make")
    assert tokens("")[0] != TOKEN
    assert tokens("")[::2] == (TOKEN, "principal")
    with pytest.raises(RuntimeError):  # the client keeps the one before
        tokens("")
    assert "kafka.token_provider failed: " in caplog.text
    assert TOKEN not in caplog.text
