"""Options that several commands share, and loading of the settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from delayservice.base.errors import DelayServiceError

if TYPE_CHECKING:
    from delayservice.config.settings import Loaded, Settings

# Configuration file of deployments, read by every command but ``run`` if no other is named, so that
# a run-book needs no path.
INSTALLED: Final = Path("/etc/delayservice/delayservice.toml")

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
    str | None, typer.Option("--bootstrap", "-b", help="Brokers, instead of the configured ones.")
]


def load(config: Path | None, sets: list[str] | None, *, is_node: bool = False) -> Loaded:
    """Return the settings and the place of each value. ``config`` None: the file ``INSTALLED``, if
    it exists; a node (``is_node``) reads no file then.
    """
    from delayservice.config.settings import load_with_origins  # noqa: PLC0415  # help is read more often

    installed = INSTALLED if INSTALLED.is_file() and not is_node else None
    return load_with_origins(config or installed, sets or [], os.environ)


def load_settings(
    config: Path | None, sets: list[str] | None, bootstrap: str | None = None
) -> Settings:
    """Return the settings as ``load`` does; ``bootstrap`` replaces the configured brokers."""
    named = [f"kafka.bootstrap={bootstrap}"] if bootstrap else []
    return load(config, [*(sets or []), *named]).settings


def moment_ms(option: str, text: str | None) -> int | None:
    """Parse a time (RFC 3339, epoch milliseconds, or a duration before now: ``2h``) into epoch
    milliseconds; None: the option is not given.
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


def pairs(option: str, texts: Sequence[str] | None) -> list[tuple[str, str]]:
    found = []
    for text in texts or ():
        name, equals, said = text.partition("=")
        if not (equals and name):
            raise DelayServiceError(f"{option} {text!r} must be NAME=VALUE")
        found.append((name, said))
    return found


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Command-line options of the commands that read the settings."""

    config: ConfigOption = None
    sets: SetOption = None
    as_json: JsonOption = False

    def settings(self) -> Settings:
        return load_settings(self.config, self.sets)


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Command-line options of the commands that connect to Kafka."""

    bootstrap: BootstrapOption = None
    config: ConfigOption = None
    sets: SetOption = None
    as_json: JsonOption = False

    def settings(self) -> Settings:
        return load_settings(self.config, self.sets, self.bootstrap)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a Typer command that has, instead of each dataclass parameter of ``command``, an
    option for each field of the dataclass.
    """
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
