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

from delayservice.contract.times import read_duration_ms, read_instant_ms

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


def flag(name: str, text: str, *more: str) -> Any:  # noqa: ANN401  # as typer.Option
    return typer.Option(name, *more, help=text)


def duration(name: str, text: str, shown: str | None = None) -> Any:  # noqa: ANN401  # as typer.Option
    """Return an option ``name`` of milliseconds that takes a duration with a unit. ``text``: its
    help; ``shown``: its default, as the help shows it.
    """
    return _read(name, "DURATION", read_duration_ms, text, shown)


def moment(name: str, text: str) -> Any:  # noqa: ANN401  # as typer.Option
    """Return an option ``name`` of epoch milliseconds that takes a time as people write it."""
    hint = f"{text}: RFC 3339, epoch ms, now, +10m, -2h."
    return _read(name, "TIME", lambda said: read_instant_ms(said, now_ms()), hint, None)


def _read(name: str, metavar: str, read: Callable[[str], int], text: str, shown: str | None) -> Any:  # noqa: ANN401  # as above
    def parsed(given: str | int) -> int:
        try:
            return given if isinstance(given, int) else read(given)  # int: the default
        except ValueError as exc:
            raise typer.BadParameter(str(exc)) from exc

    return typer.Option(name, metavar=metavar, parser=parsed, help=text, show_default=shown or True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def load(config: Path | None, sets: list[str] | None, *, is_node: bool = False) -> Loaded:
    """Return the settings and the place of each value. ``config`` None: the file ``INSTALLED``, if
    it exists; a node (``is_node``) reads no file then.
    """
    from delayservice.config.settings import load_with_origins  # noqa: PLC0415  # help is read more often

    installed = INSTALLED if INSTALLED.is_file() and not is_node else None
    return load_with_origins(config or installed, sets or [], os.environ)


def pairs(option: str, texts: Sequence[str] | None) -> list[tuple[str, str]]:
    found = []
    for text in texts or ():
        name, equals, said = text.partition("=")
        if not (equals and name):
            raise typer.BadParameter(f"{text!r} must be NAME=VALUE", param_hint=option)
        found.append((name, said))
    return found


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Command-line options of the commands that read the settings."""

    config: ConfigOption = None
    sets: SetOption = None
    as_json: JsonOption = False

    def settings(self) -> Settings:
        return load(self.config, self.sets).settings


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Command-line options of the commands that connect to Kafka."""

    bootstrap: BootstrapOption = None
    config: ConfigOption = None
    sets: SetOption = None
    as_json: JsonOption = False

    def settings(self, *more: str) -> Settings:
        """Return the settings; ``more`` override them, as ``--set`` does."""
        named = [f"kafka.bootstrap={self.bootstrap}"] if self.bootstrap else []
        return load(self.config, [*(self.sets or []), *named, *more]).settings


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
