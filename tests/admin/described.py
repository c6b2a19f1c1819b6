"""Descriptions of the admin API, read without a running node."""

from __future__ import annotations

from typing import Any, cast

from delayservice.admin.server import make_app


def openapi() -> dict[str, Any]:
    """Return the OpenAPI description: the routes alone make it."""
    return make_app(cast("Any", _Unasked()), []).openapi()


class _Unasked:
    """A context with every attribute, as no attribute is used."""

    def __getattr__(self, name: str) -> Any:  # it stands for all
        return "127.0.0.1:1" if name == "listen" else () if name == "hosts" else _Unasked()
