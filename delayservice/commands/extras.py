"""Instructions to install packages that only some commands need. Needs none of them."""

from __future__ import annotations

from delayservice import __version__

WHEEL = f"kafka_delay_service-{__version__}-py3-none-any.whl"


def how_to_install(extra: str) -> str:
    """Return a text for errors: how to install the wheel with its set ``extra`` of packages."""
    return f"install the wheel with its extra {extra}: pip install './{WHEEL}[{extra}]'"
