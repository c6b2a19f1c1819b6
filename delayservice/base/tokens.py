"""Tokens of OAUTHBEARER for the clients of librdkafka, made by a function of the user's."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

from delayservice.base.errors import SettingsError

# Our own option beside those of librdkafka: ``kafka.token_provider``.
TOKEN_PROVIDER: Final = "token.provider"  # noqa: S105  # a name

# What a client gets that never had a token, and its length, s. Without any, making the client takes
# 10 s and fails; with this one it can't log in until there is a token, like with a wrong password.
_NO_TOKEN: Final = "no-token"  # noqa: S105  # says that it is none
_NO_TOKEN_S: Final = 10.0
_TOKEN_S_MAX: Final = 10 * 366 * 86_400.0

_LOGGER: Final = logging.getLogger("librdkafka")


class TokenSource:
    """Callback of one client that makes its tokens with ``kafka.token_provider``. Neither a token
    nor the text of an error, which may hold one, is logged.
    """

    def __init__(self, provider: str) -> None:
        self._make = _function(provider)
        self._had_one = False

    def __call__(self, config: str) -> tuple[Any, ...]:
        now_s = time.time()
        try:
            made = self._make(config)
            token, expires_s = made[:2]
            if isinstance(token, str) and 0 < expires_s - now_s < _TOKEN_S_MAX:
                self._had_one = True
                return tuple(made)
            failure = "it has to return the token and its end, in epoch seconds"
        except Exception as exc:  # noqa: BLE001  # code of users
            *_, last = traceback.extract_tb(exc.__traceback__)
            failure = f"{type(exc).__name__} in {last.filename}, line {last.lineno}"
        _LOGGER.error("kafka.token_provider failed: %s", failure)
        if self._had_one:  # the client keeps it, and asks again in 10 s
            raise RuntimeError(failure)
        return _NO_TOKEN, now_s + _NO_TOKEN_S


@cache
def _function(provider: str) -> Callable[[str], Any]:
    module, _, name = provider.partition(":")
    try:
        found: Callable[[str], Any] = getattr(import_module(module), name)
    except Exception as exc:  # code of users
        raise SettingsError(
            f"kafka.token_provider {provider} can't be loaded: {exc}; install its module beside "
            "the service, or add its folder to PYTHONPATH"
        ) from exc
    return found


def with_tokens(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for librdkafka, with a callback in place of ``TOKEN_PROVIDER``."""
    found = dict(options)
    provider = found.pop(TOKEN_PROVIDER, None)
    return found | ({"oauth_cb": TokenSource(provider)} if provider else {})
