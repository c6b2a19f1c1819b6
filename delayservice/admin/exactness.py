"""Requests that would be misread are refused: a body that is not JSON, a misspelt query name."""

from __future__ import annotations

from typing import Final

from fastapi import Request

from delayservice.admin.problems import Refusal

_JSON: Final = "application/json"


def takes_json(request: Request) -> None:
    """Let pass what has no body, or one that says that it is JSON.

    Raises:
        Refusal: 415, the body is something else, or does not say what it is.
    """
    given = request.headers.get("content-type", "")
    if _has_body(request) and given.partition(";")[0].strip().lower() != _JSON:
        said = f"is {given}" if given else "does not say what it is"
        raise Refusal(415, f"the body {said}: send JSON with `Content-Type: {_JSON}`")


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0"


def knows_query(request: Request) -> None:
    """Let pass a query whose names the API's description knows: with a misspelt filter it would
    find everything.

    Raises:
        Refusal: 422, with the names that are known.
    """
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
    if unknown := sorted(request.query_params.keys() - known):
        names = ", ".join(sorted(known)) or "none"
        raise Refusal(
            422, f"unknown in the query: {', '.join(unknown)}; {request.url.path} takes: {names}"
        )
