"""Tokens from a function of the user's, in one client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from delayservice.base.tokens import TokenSource

TOKEN = "eyJhbGciOiJub25lIn0.e30."  # noqa: S105  # an example
_made: Iterator[Callable[[], Any]] = iter(())


def make(_config: str) -> Any:
    return next(_made)()


def source(*made: Callable[[], Any]) -> TokenSource:
    global _made  # noqa: PLW0603  # a setting names a function
    _made = iter(made)
    return TokenSource(f"{__name__}:make")


def soon() -> tuple[str, float, str]:
    return TOKEN, time.time() + 60, "principal"


def broken() -> None:
    raise ValueError(TOKEN)


@pytest.mark.parametrize(
    "made",
    [
        broken,
        lambda: TOKEN,
        lambda: None,
        lambda: (time.time() + 60, TOKEN),
        lambda: (TOKEN, time.time() - 1),
        lambda: (TOKEN, 1_000 * time.time() + 60_000),
        lambda: (TOKEN, TOKEN),
    ],
)
def test_what_is_no_token_keeps_a_client_waiting_and_is_not_logged(
    made: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    tokens = source(made, soon, made)
    with caplog.at_level(logging.ERROR, "librdkafka"):
        token, expires_s = tokens("")
        assert token != TOKEN
        assert expires_s > time.time()
        assert tokens("")[::2] == (TOKEN, "principal")
        with pytest.raises(RuntimeError):  # the client keeps the one before
            tokens("")
    assert "kafka.token_provider failed: " in caplog.text
    assert TOKEN not in caplog.text
