"""Options of several commands, and loading of their settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

if TYPE_CHECKING:
    from delayservice.config.settings import Loaded, Settings

INSTALLED: Final = Path("/etc/delayservice/delayservice.toml")
"""Configuration file of deployments: the default of commands that query or change something, so
that a run-book needs no path. A node gets its file by an option."""

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="DELAYSERVICE_CONFIG",
        dir_okay=False,
        help=f"Configuration file (TOML). All commands but run default to {INSTALLED}.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one setting; repeatable."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="JSON for programs: one object, or one on each line.")
]
BootstrapOption = Annotated[
    str | None, typer.Option("--bootstrap", "-b", help="Broker, instead of the configured.")
]


def load(config: Path | None, sets: list[str] | None, *, is_node: bool = False) -> Loaded:
    """Return the settings and their origins; ``is_node``: without the default file.

    Raises:
        SettingsError: a file or a value is invalid.
    """
    from delayservice.config.settings import load_with_origins  # noqa: PLC0415  # help is read more often

    installed = INSTALLED if INSTALLED.is_file() and not is_node else None
    return load_with_origins(config or installed, sets or [], os.environ)


def load_settings(
    config: Path | None, sets: list[str] | None, bootstrap: str | None = None
) -> Settings:
    """Return the settings; ``bootstrap`` replaces the configured brokers.

    Raises:
        SettingsError: a file or a value is invalid.
    """
    named = [f"kafka.bootstrap={bootstrap}"] if bootstrap else []
    return load(config, [*(sets or []), *named]).settings


def moment_ms(option: str, text: str | None) -> int | None:
    """Return an option's time in epoch ms: RFC 3339, epoch milliseconds, or ``2h`` ago.

    Raises:
        DelayServiceError: it can't be read.
    """
    from delayservice.commands.send import instant_ms  # noqa: PLC0415  # as above
    from delayservice.config.units import parse_duration_ms  # noqa: PLC0415  # as above

    if text is None:
        return None
    try:
        ago_ms = parse_duration_ms(text)
    except ValueError:
        return instant_ms(option, text)
    return time.time_ns() // 1_000_000 - ago_ms


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Options of a command that reads the settings."""

    config: ConfigOption = None
    sets: SetOption = None
    as_json: JsonOption = False

    def settings(self) -> Settings:
        """Return the settings that the options name."""
        return load_settings(self.config, self.sets)


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Options of a command that uses Kafka."""

    bootstrap: BootstrapOption = None
    config: ConfigOption = None
    sets: SetOption = None
    as_json: JsonOption = False

    def settings(self) -> Settings:
        """Return the settings that the options name."""
        return load_settings(self.config, self.sets, self.bootstrap)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Expand a command's dataclass parameters into options, one for each field."""
    shown: list[Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            shown += _parameters(kind)
        else:
            shown.append(parameter)

    @wraps(command)
    def call(*args: object, **given: object) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
        command(*args, **given)

    # Typer reads both, and evaluates no strings in them.
    call.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in shown}
    return call


def _parameters(kind: type[Any]) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for one in fields(kind)
    ]
