"""Packages that only some commands need: what to install when one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from delayservice import __version__
from delayservice.commands.console import print_error

WHEEL = f"kafka_delay_service-{__version__}-py3-none-any.whl"


def how_to_install(extra: str) -> str:
    """Return the words that say how an extra is installed."""
    return f"install the wheel with its extra {extra}: pip install './{WHEEL}[{extra}]'"


@contextmanager
def development_extra() -> Iterator[None]:
    """End the command with a message if an import inside fails: it needs the development extra."""
    # The imports are late because the other commands do without it.
    try:
        yield
    except ModuleNotFoundError as exc:
        print_error(
            f"this command needs the package {exc.name}, which is not installed: "
            f"{how_to_install('dev')}"
        )
        raise typer.Exit(1) from exc
