"""Options of commands, made of the fields of dataclasses, and loading of the settings."""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, partial, wraps
from inspect import Parameter, Signature, getsource, signature
from itertools import pairwise
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from typer.models import OptionInfo, ParameterInfo

from delayservice.config.units import format_duration
from delayservice.contract.times import read_duration_ms, read_instant_ms

if TYPE_CHECKING:
    from delayservice.config.settings import Loaded, Settings

# Configuration file of deployments, read by every command but ``run`` if no other is named, so that
# a run-book needs no path.
INSTALLED: Final = Path("/etc/delayservice/delayservice.toml")

Duration: TypeAlias = Annotated[int, "DURATION"]
"""Type of an option in ms, which is given as a duration with a unit."""
Moment: TypeAlias = Annotated[int, "TIME"]
"""Type of an option in epoch ms, which is given as a time."""

JsonOption = Annotated[
    bool, typer.Option("--json", help="JSON for programs: one object, or one on each line.")
]


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
        name, equals, value = text.partition("=")
        if not (equals and name):
            raise typer.BadParameter(f"{text!r} must be NAME=VALUE", param_hint=option)
        found.append((name, value))
    return found


@dataclass(frozen=True, slots=True)
class SettingsOptions:
    """Options of the commands that read the settings."""

    PANEL: ClassVar = "Settings and output"

    config: Annotated[
        Path | None, typer.Option("--config", "-c", envvar="DELAYSERVICE_CONFIG", dir_okay=False)
    ] = None
    """Configuration file (TOML). All commands but run default to
    /etc/delayservice/delayservice.toml.
    """
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE")] = None
    """Override one setting; repeatable."""

    def settings(self, *more: str) -> Settings:
        """Return the settings; ``more`` override them, as ``--set`` does."""
        return load(self.config, [*(self.sets or []), *more]).settings


@dataclass(frozen=True, slots=True)
class CommonOptions(SettingsOptions):
    """Options of the commands that read the settings and print a result."""

    PANEL: ClassVar = SettingsOptions.PANEL

    as_json: JsonOption = False


@dataclass(frozen=True, slots=True)
class KafkaOptions(CommonOptions):
    """Options of the commands that connect to Kafka."""

    PANEL: ClassVar = SettingsOptions.PANEL

    bootstrap: Annotated[str | None, typer.Option("--bootstrap", "-b")] = None
    """Brokers, instead of the configured ones."""

    def settings(self, *more: str) -> Settings:
        named = [f"kafka.bootstrap={self.bootstrap}"] if self.bootstrap else []
        # Errors that matter are raised; the client's log before them would mislead.
        sets = ["kafka.client.log_level=2", *(self.sets or []), *named, *more]
        return load(self.config, sets).settings


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a Typer command that has, instead of each dataclass parameter of ``command``, an
    option for each field of the dataclass. Its name is that of the field without ``_ms``, its help
    the docstring below the field, and its group in the help the ``PANEL`` of the class.
    """
    shown: list[Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            shown += _parameters(kind)
        else:
            shown.append(_with_option(parameter))

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
    texts: dict[str, str] = {}
    panels: dict[str, str | None] = {}
    for base in filter(is_dataclass, reversed(kind.__mro__)):
        texts |= _docstrings(base.__module__).get(base.__name__, {})
        panels |= dict.fromkeys(base.__annotations__, vars(base).get("PANEL"))
    return [
        _with_option(
            Parameter(
                one.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if one.default is MISSING else one.default,
                annotation=hints[one.name],
            ),
            texts.get(one.name, ""),
            panels[one.name],
        )
        for one in fields(kind)
    ]


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    # Those below the fields of each class, which Python does not keep. Every start needs them, so
    # each module is parsed once.
    classes = ast.parse(getsource(sys.modules[module])).body
    return {
        kind.name: {
            ast.unparse(field.target): " ".join(str(ast.literal_eval(text.value)).split())
            for field, text in pairwise(kind.body)
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
        }
        for kind in classes
        if isinstance(kind, ast.ClassDef)
    }


def _with_option(
    parameter: Parameter, text: str | None = None, panel: str | None = None
) -> Parameter:
    """Return the parameter as Typer reads it. ``text``: help of an option; None: the parameter
    stays as it is, unless it is a ``Duration`` or a ``Moment``.
    """
    hint, default = parameter.annotation, parameter.default
    # It may be ``Annotated``, or a union with that.
    parts = [part for one in (hint, *get_args(hint)) for part in (one, *get_args(one))]
    unit = next((part for part in parts if part in ("DURATION", "TIME")), None)
    if unit is None and text is None:
        return parameter
    given = (copy(part) for part in parts if isinstance(part, ParameterInfo))
    option: ParameterInfo = next(given, typer.Option())
    option.help = option.help or text
    option.rich_help_panel = panel
    # Typer keeps the first of the given names as the default.
    if option.default is ... and isinstance(option, OptionInfo):
        option.param_decls = (f"--{parameter.name.removesuffix('_ms').replace('_', '-')}",)
    if unit is not None:
        option.metavar, option.parser = unit, partial(_read, unit)
        if unit == "TIME":
            option.help = f"{(option.help or '').rstrip('.')}: RFC 3339, epoch ms, now, +10m, -2h."
        if isinstance(default, int):
            option.show_default = format_duration(default)
        hint = int | None if default is None else int
    elif get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return parameter.replace(annotation=Annotated[hint, option])


def _read(unit: str, given: str | int) -> int:
    if isinstance(given, int):  # the default
        return given
    try:
        return read_duration_ms(given) if unit == "DURATION" else read_instant_ms(given, now_ms())
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc
