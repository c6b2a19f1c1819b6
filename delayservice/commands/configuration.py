"""``delayservice config``: shows, checks and explains the settings."""

from __future__ import annotations

import typer

from delayservice.base.errors import SettingsError
from delayservice.commands.console import emit, out, print_error, say, show_table
from delayservice.commands.options import CommonOptions, load, with_options

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

EXIT_INVALID = 2

app = typer.Typer(help="Show, check and explain the settings.", no_args_is_help=True)


@app.command(epilog="Example: [bold]delayservice config show --set log.level=debug[/]")
@with_options
def show(*, common: CommonOptions) -> None:
    """Print the effective configuration and the origin of each value. Secrets are hidden."""
    from delayservice.config import reference

    rows = reference.effective(load(common.config, common.sets))
    found = {row.name: {"value": row.value, "origin": row.origin} for row in rows}

    def show_all() -> None:
        texts = [(row.name, reference.as_text(row.name, row.value), row.origin) for row in rows]
        show_table(("setting", "value", "from"), texts)

    emit(found, show_all, as_json=common.as_json)


@app.command(epilog="Exit status: 0 valid, 1 an error, 2 the settings are not valid.")
@with_options
def check(*, common: CommonOptions) -> None:
    """Check whether a node could start with the configuration; no server is asked."""
    from delayservice.process.option_check import check_options

    problem = ""
    try:
        check_options(common.settings())
    except SettingsError as exc:
        problem = str(exc)
    emit(
        {"valid": not problem, "problem": problem or None},
        lambda: print_error(problem) if problem else say(out, "valid", "green"),
        as_json=common.as_json,
    )
    raise typer.Exit(EXIT_INVALID if problem else 0)


@app.command()
def reference() -> None:
    """Print all settings with their defaults and bounds, as Markdown."""
    from delayservice.config.reference import reference as text

    print(text(), end="")  # noqa: T201 (Markdown as it is)
