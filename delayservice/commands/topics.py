"""``delayservice topics``: creates the topics that the service needs, and checks existing ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import typer

from delayservice.commands.console import EXIT_FINDINGS, emit, out, say, show_table
from delayservice.commands.options import KafkaOptions, with_options

if TYPE_CHECKING:
    from connectors.kafka.topics import TopicKeeper
    from delayservice.config.settings import Settings

_CHECK_EPILOG: Final = (
    "Exit status: 0 the service can use all topics, 1 an error, 2 wrong usage, 3 something differs."
)

app = typer.Typer(help="Create and check the topics of the service.", no_args_is_help=True)


@app.command(epilog="Example: [bold]delayservice topics create -c delayservice.toml[/]")
@with_options
def create(*, common: KafkaOptions) -> None:
    """Create the delay topics and the service's own topics that are missing.

    Partitions and replication are those of the settings. Safe to repeat: existing topics stay.
    """
    keeper = _keeper(_settings(common))
    missing = keeper.missing()
    made = [
        {"topic": name, "partitions": missing[name].partitions} for name in keeper.create(missing)
    ]

    def show() -> None:
        for one in made:
            say(out, f"{one['topic']} is created, partitions: {one['partitions']}", "green")
        if not made:
            say(out, "all topics exist")

    emit({"created": made}, show, as_json=common.as_json)


@app.command(epilog=_CHECK_EPILOG)
@with_options
def check(*, common: KafkaOptions) -> None:
    """Show what differs from what the service needs: topics, their settings, rights."""
    settings = _settings(common)
    found = list(_differences(_keeper(settings), settings.topics.checkpoint))

    def show() -> None:
        if found:
            show_table(("severity", "what differs"), [(kind, why) for kind, why in found])
        else:
            say(out, "the service can use all topics", "green")

    told = [{"severity": kind, "why": why} for kind, why in found]
    emit({"differences": told}, show, as_json=common.as_json)
    raise typer.Exit(EXIT_FINDINGS if found else 0)


def _settings(common: KafkaOptions) -> Settings:
    # A check makes nothing again, and ``create`` does not ask this setting.
    return common.settings("topics.create=false")


def _keeper(settings: Settings) -> TopicKeeper:
    from connectors.kafka.clients import admin_client  # noqa: PLC0415  # not needed for a help text
    from connectors.kafka.topics import TopicKeeper  # noqa: PLC0415  # as above

    return TopicKeeper(admin_client(settings.kafka.client_config("admin")), settings)


def _differences(keeper: TopicKeeper, checkpoint: str) -> Iterator[tuple[str, str]]:
    missing = keeper.missing()
    for name in missing:
        yield "missing", f"{name} does not exist: delayservice topics create makes it"
    if checkpoint in missing:  # a new cluster
        return
    seen = keeper.look(keeper.layout())
    for topic in seen.topics:
        if topic.name not in missing:
            yield from (("problem", f"{topic.name}: {why}") for why in topic.problems)
            yield from (("risk", f"{topic.name}: {why}") for why in topic.risks)
    for problem in (*seen.own_problems, *seen.outlet_problems):
        if problem.topic not in missing:
            yield "problem", problem.text
