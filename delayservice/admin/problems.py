"""Errors as problem details (RFC 9457): what happened, to what, and what to do about it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import compile_path

from delayservice.base.errors import DelayServiceError

MEDIA_TYPE: Final = "application/problem+json"

_log = structlog.get_logger(__name__)


class Problem(BaseModel):
    """Description of an error."""

    type: str = Field(default="about:blank", description="Always about:blank: `status` says it.")
    title: str = Field(description="The status in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What happened, to what, and what to do about it.")
    errors: list[str] = Field(
        default=[], description="What is wrong with the request, part by part."
    )


class Refusal(Exception):  # noqa: N818  # it is an answer
    """Error that refuses a request with an HTTP status; it is answered with problem details.
    ``retry_after_s``: time until a retry makes sense; None: a retry won't help.
    """

    def __init__(self, status: int, detail: str, retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of a route's error responses: ``statuses``, and those that
    every route may give.
    """
    return {
        status: {
            "model": Problem,
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in {*statuses, 400, 401, 411, 413, 415, 421, 422, 503}
    }


def plain(message: str) -> str:
    """Return pydantic's message about a value without its own preface."""
    return message.removeprefix("Value error, ")


def answer(
    status: int, detail: str, errors: list[str] | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Return an HTTP response with problem details. ``errors``: what is wrong with the request,
    part by part.
    """
    problem = Problem(
        title=HTTPStatus(status).phrase, status=status, detail=detail, errors=errors or []
    )
    return JSONResponse(problem.model_dump(), status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Add handlers to ``app`` that answer errors with problem details. They run on the event loop,
    because all threads may be busy.
    """

    @app.exception_handler(Refusal)
    async def refused(_: Request, exc: Refusal) -> JSONResponse:
        return answer(exc.status, exc.detail, headers=exc.headers)

    @app.exception_handler(DelayServiceError)
    async def failed(_: Request, exc: DelayServiceError) -> JSONResponse:
        return answer(503, str(exc), headers={"Retry-After": "1"})

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, exc: RequestValidationError) -> JSONResponse:
        found = exc.errors()
        errors = [f"{'.'.join(map(str, e['loc']))}: {plain(e['msg'])}" for e in found]
        detail = "the request is invalid; see errors"
        if any(e["loc"] == ("body",) and e["type"] == "missing" for e in found):
            detail = "the request has no body: send a JSON object, `{}` at least; see /openapi.json"
        return answer(422, detail, errors)

    @app.exception_handler(StarletteHTTPException)
    async def refused_before(request: Request, exc: StarletteHTTPException) -> JSONResponse:
        detail = str(exc.detail)
        if exc.status_code == HTTPStatus.NOT_FOUND and detail == "Not Found":
            detail = f"there is nothing at {request.url.path}; see /openapi.json"
        headers = dict(exc.headers or {})
        if methods := exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED and _methods_of(request):
            headers["Allow"] = ", ".join(sorted(methods))
        return answer(exc.status_code, detail, headers=headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, exc: Exception) -> JSONResponse:
        _log.error("request_failed", path=request.url.path, exc_info=exc)
        return answer(500, f"{type(exc).__name__}; the node's log says more")


def _methods_of(request: Request) -> set[str]:
    # Starlette reports only the methods of the path's first route.
    found: set[str] = set()
    for path, operations in request.app.openapi()["paths"].items():
        if compile_path(path)[0].match(request.url.path):
            found |= {method.upper() for method in operations}
    return found
