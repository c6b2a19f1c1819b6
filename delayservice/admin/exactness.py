"""Refusal of requests that would be misread: a body that is not JSON, a misspelt query name."""

from __future__ import annotations

from typing import Final

from fastapi import Request

from delayservice.admin.problems import Refusal

_JSON: Final = "application/json"


def takes_json(request: Request) -> None:
    """Accept a request without a body, or with one whose content type is JSON.

    Raises:
        Refusal: 415, the content type is missing or another one.
    """
    given = request.headers.get("content-type", "")
    if _has_body(request) and given.partition(";")[0].strip().lower() != _JSON:
        said = f"is {given}" if given else "does not say what it is"
        raise Refusal(415, f"the body {said}: send JSON with `Content-Type: {_JSON}`")


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0"


def knows_query(request: Request) -> None:
    """Accept a query with known names only, as a misspelt filter would be ignored and find
    everything.

    Raises:
        Refusal: 422, with the known names.
    """
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
    if unknown := sorted(request.query_params.keys() - known):
        names = ", ".join(sorted(known)) or "none"
        raise Refusal(
            422, f"unknown in the query: {', '.join(unknown)}; {request.url.path} takes: {names}"
        )
