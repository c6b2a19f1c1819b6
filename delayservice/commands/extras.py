"""Packages that only some commands need: what to install when one is missing."""

from __future__ import annotations

from delayservice import __version__

WHEEL = f"kafka_delay_service-{__version__}-py3-none-any.whl"


def how_to_install(extra: str) -> str:
    """Return the words that say how an extra is installed."""
    return f"install the wheel with its extra {extra}: pip install './{WHEEL}[{extra}]'"
