"""Instructions to install packages that only some commands need."""

from __future__ import annotations

import typer

from delayservice import __version__
from delayservice.commands.console import print_error

WHEEL = f"kafka_delay_service-{__version__}-py3-none-any.whl"
DEVTOOLS_WHEEL = f"kafka_delay_devtools-{__version__}-py3-none-any.whl"


def how_to_install(extra: str) -> str:
    """Return a text for errors: how to install the wheel with its set ``extra`` of packages."""
    return f"install the wheel with its extra {extra}: pip install './{WHEEL}[{extra}]'"


def add_placeholders(app: typer.Typer, *names: str) -> None:
    """Add a hidden command for each of ``names``, which prints how to install the development
    tools, and exits with status 1.
    """

    def missing(context: typer.Context) -> None:
        print_error(
            f"{context.command_path} belongs to the development tools, which are not installed: "
            f"install their wheel beside this one: pip install './{DEVTOOLS_WHEEL}'"
        )
        raise typer.Exit(1)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    for name in names:
        app.command(name, hidden=True, add_help_option=False, context_settings=anything)(missing)
