"""Commands that ask a running node through its admin API."""

from __future__ import annotations

import typer

from delayservice.commands.change import CHANGED, cancel, fire, reschedule
from delayservice.commands.pause import pause, pauses, resume
from delayservice.commands.pending import FOUND, pending, show


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module to ``app``."""
    app.command(epilog="Example: [bold]delayservice pending --target 'orders*' --counts[/]")(
        pending
    )
    app.command(epilog=FOUND)(show)
    app.command(epilog=CHANGED)(cancel)
    app.command(epilog=CHANGED)(fire)
    app.command(epilog=CHANGED)(reschedule)
    app.command(
        epilog="Example: [bold]delayservice pause target 'orders*' --reason 'database move'[/]"
    )(pause)
    app.command(epilog=FOUND)(resume)
    app.command()(pauses)
