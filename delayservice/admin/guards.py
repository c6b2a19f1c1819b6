"""Checks of HTTP requests: host name, size, token, names in the query, type of the body.

Changes need a token that may change, of the API as a bearer token (``Authorization: Bearer``), of
the page as a field of its forms. A browser sends neither by itself, so that no other site can make
a change in a user's name. The password of basic authentication, which it does send, allows reading
only.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.security import (
    HTTPAuthorizationCredentials,
    HTTPBasic,
    HTTPBasicCredentials,
    HTTPBearer,
)
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delayservice.admin.problems import Refusal, answer
from delayservice.config.admin import NamedToken

BODY_BYTES_MAX: Final = 1 << 20
_JSON: Final = "application/json"
_OWN_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

_bearer = HTTPBearer(auto_error=False, description="A token of `admin.tokens`.")
_basic = HTTPBasic(auto_error=False, description="A token as password; any user.")
_Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
_Basic = Annotated[HTTPBasicCredentials | None, Depends(_basic)]
_Check = Callable[..., Coroutine[None, None, None]]

# Name of the token that the current request has shown; empty: it needed none.
BY: Final[ContextVar[str]] = ContextVar("by", default="")


# Both checks are coroutines: what a function in a thread writes to ``BY``, no one else would see.
def reader(tokens: Sequence[NamedToken]) -> _Check:
    """Return a FastAPI dependency that refuses a request without one of ``tokens``, which may be
    sent as a bearer token or as the password of basic authentication.
    """

    async def check(bearer: _Bearer, basic: _Basic) -> None:
        how = "reading needs a token: send it as a bearer, or as the password of any user"
        shown = bearer.credentials if bearer is not None else basic.password if basic else ""
        BY.set(_token(shown, tokens, how, "Basic").name)

    return check


def writer(tokens: Sequence[NamedToken]) -> _Check:
    """Return a FastAPI dependency that refuses a request unless its bearer token is one of
    ``tokens`` that may change.
    """

    async def check(bearer: _Bearer) -> None:
        how = "changes need a token: send `Authorization: Bearer TOKEN`"
        token = _token(bearer.credentials if bearer else "", tokens, how, "Bearer")
        if not token.may_change:
            raise Refusal(403, f"the token {token.name} is for reading only; send one for changes")
        BY.set(token.name)

    return check


def _token(shown: str, tokens: Sequence[NamedToken], needed: str, scheme: str) -> NamedToken:
    # Compared with each of them: the time that it takes says nothing.
    found = [one for one in tokens if hmac.compare_digest(shown.encode(), one.secret.encode())]
    if found:
        return found[0]
    where = "one is in the file admin_token of the node's state folder, or in admin.tokens"
    wrong = "the token that was sent is not this node's" if shown else needed
    refusal = Refusal(401, f"{wrong}; {where}")
    refusal.headers["WWW-Authenticate"] = f'{scheme} realm="delayservice"'
    raise refusal


def takes_json(request: Request) -> None:
    """Refuse, with status 415, a body whose content type is not JSON."""
    given = request.headers.get("content-type", "")
    has_body = request.headers.get("content-length", "0") != "0"
    if has_body and given.partition(";")[0].strip().lower() != _JSON:
        said = f"is {given}" if given else "does not say what it is"
        raise Refusal(415, f"the body {said}: send JSON with `Content-Type: {_JSON}`")


def knows_query(request: Request) -> None:
    """Refuse, with status 422, a name in the query that the route does not know: FastAPI would
    ignore a misspelt one.
    """
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
    if unknown := sorted(request.query_params.keys() - known):
        names = ", ".join(sorted(known)) or "none"
        raise Refusal(
            422, f"unknown in the query: {', '.join(unknown)}; {request.url.path} takes: {names}"
        )


class RequestGate:
    """ASGI middleware that refuses requests with an unknown host name or with a body over 1 MiB or
    of unknown length, and adds security headers to all answers.

    The check of host names stops DNS rebinding: a page of another site whose host name was made to
    point to this server. ``hosts``: names allowed besides loopback's; ``*``: any name.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts | _OWN_HOSTS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_RAW_HEADERS]
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._refusal(headers)
        if refusal is not None:
            await answer(*refusal)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if "*" not in self._hosts and name not in self._hosts:
            return (
                421,
                f"unknown host name {name!r}; add it to admin.hosts if it is yours",
            )
        if "transfer-encoding" in headers:
            return 411, "a body needs Content-Length"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            return 413, f"a body is {BODY_BYTES_MAX} bytes at most"
        return None


_RAW_HEADERS: Final = [(name.lower().encode(), text.encode()) for name, text in _HEADERS.items()]
