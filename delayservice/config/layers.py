"""Merge of the settings in file, environment and ``--set``, each of which overrides those before.

The place of each value is kept, so that ``delayservice config show`` and every error can name it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError

from delayservice.base.errors import SettingsError, nearest
from delayservice.config.kafka import is_secret_name

ENV_PREFIX = "DELAYSERVICE_"
_ENV_SEPARATOR = "__"
_LEAF_OF_TABLE = 2
_PASS_THROUGH = {
    ("kafka", "client"),
    ("kafka", "consumer"),
    ("kafka", "producer"),
    ("kafka", "admin"),
}
_PARTS_OF_SET = re.compile(r'"([^"]*)"|([^."]+)')

PathKey: TypeAlias = tuple[str, ...]
# One setting: path of its name, value, and place: the file, variable or ``--set`` with the value.
Leaf: TypeAlias = tuple[PathKey, object, str]


@dataclass(frozen=True, slots=True)
class Origins:
    """Places (file, variable or ``--set``) where values are written, by the path of the setting's
    name; all other values are defaults.
    """

    places: dict[PathKey, str] = field(default_factory=dict)

    def of(self, path: PathKey) -> str:
        # A table around the value, or a value below it, counts too.
        for length in range(len(path), 0, -1):
            place = self.places.get(path[:length])
            if place is not None:
                return place
        below = (place for known, place in self.places.items() if known[: len(path)] == path)
        return next(below, "default")


@dataclass(frozen=True, slots=True)
class Layers:
    """Values merged from file, environment and ``--set``, not validated yet, and their places."""

    tree: dict[str, Any]
    origins: Origins


def read_layers(
    config: Path | None,
    sets: Sequence[str],
    environ: Mapping[str, str],
    model: type[BaseModel],
) -> Layers:
    """Return the merged values of file, environment and ``--set`` texts (``section.key=value``).
    ``model``: class of the settings.
    """
    layers = Layers({}, Origins())
    if config is not None:
        for leaf in _flatten((), _read_toml(config), config.name):
            _put(layers, leaf)
    for leaf in _from_environ(environ, model):
        _put(layers, leaf)
    for text in sets:
        _put(layers, _from_set(text))
    return layers


def known_names(model: type[BaseModel]) -> list[str]:
    return [
        f"{section}.{key}"
        for section, info in model.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
        for key in info.annotation.model_fields
    ]


def explain(error: ValidationError, layers: Layers, model: type[BaseModel]) -> str:
    """Return a message with a line for each error: name and place of the setting, what is wrong,
    and if the name is unknown, a similar one.
    """
    lines = [
        _explain_one(tuple(str(part) for part in finding["loc"]), finding, layers, model)
        for finding in error.errors(include_url=False, include_context=False)
    ]
    return "\n".join(dict.fromkeys(lines))


def _explain_one(
    loc: PathKey, finding: Mapping[str, Any], layers: Layers, model: type[BaseModel]
) -> str:
    place = layers.origins.of(loc)
    name = ".".join(loc) or "settings"
    if finding["type"] == "extra_forbidden":
        meant = _meant(loc, model)
        hint = f"; did you mean {meant}?" if meant else ""
        return f"{name} ({place}) is no setting{hint}"
    said = str(finding["msg"]).removeprefix("Value error, ")
    value = finding["input"]
    shown = isinstance(value, str | int | float) and not any(is_secret_name(part) for part in loc)
    return f"{name}{f' = {value!r}' if shown else ''} ({place}): {said[:1].lower()}{said[1:]}"


def _meant(loc: PathKey, model: type[BaseModel]) -> str | None:
    names = known_names(model)
    if len(loc) == 1:
        section = nearest(loc[0], list(model.model_fields))
        return f"[{section}]" if section else None
    if loc[0] == "targets":
        key = nearest(loc[-1], ["allow", "default_target"])
        return ".".join((*loc[:-1], key)) if key else None
    siblings = [name.partition(".")[2] for name in names if name.startswith(f"{loc[0]}.")]
    key = nearest(loc[1], siblings)
    if key:
        return f"{loc[0]}.{key}"
    elsewhere = {name.partition(".")[2]: name for name in names}
    key = nearest(loc[1], list(elsewhere))
    return elsewhere[key] if key else None


def _put(layers: Layers, leaf: Leaf) -> None:
    path, value, place = leaf
    node = layers.tree
    for depth, part in enumerate(path[:-1], start=1):
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            name = ".".join(path[:depth])
            raise SettingsError(
                f"{'.'.join(path)} ({place}): {name} ({layers.origins.of(path[:depth])}) "
                "is written as a value, but it is a table"
            )
    if value == {}:
        node.setdefault(path[-1], {})
    else:
        node[path[-1]] = value
    layers.origins.places[path] = place


def _read_toml(config: Path) -> dict[str, object]:
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as exc:
        raise SettingsError(f"{config} can't be read: {exc.strerror or exc}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{config} is no valid TOML: {exc}") from exc


def _flatten(path: PathKey, value: object, place: str) -> Iterator[Leaf]:
    if path[:2] in _PASS_THROUGH and len(path) > _LEAF_OF_TABLE:
        yield from _dotted(path[:2], path[2], value, place)
    elif isinstance(value, dict) and (value or not path):
        for key, below in value.items():
            yield from _flatten((*path, key), below, place)
    else:
        yield path, value, place


def _dotted(table: PathKey, name: str, value: object, place: str) -> Iterator[Leaf]:
    """Yield the librdkafka option ``name`` of ``table``, or, if ``value`` is a table, the options
    in it by their full names: TOML reads unquoted names with dots as nested tables.
    """
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _dotted(table, f"{name}.{key}", below, place)
    else:
        yield (*table, name), value, place


def _from_environ(environ: Mapping[str, str], model: type[BaseModel]) -> Iterator[Leaf]:
    missed = {
        ENV_PREFIX + name.replace(".", "_").upper(): name.replace(".", _ENV_SEPARATOR).upper()
        for name in known_names(model)
    }
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX):
            continue
        if variable in missed:
            raise SettingsError(
                f"{variable} has one underscore too few; did you mean "
                f"{ENV_PREFIX}{missed[variable]}?"
            )
        # Kubernetes sets DELAYSERVICE_PORT and the like for a service of that name: not ours.
        parts = variable.removeprefix(ENV_PREFIX).lower().split(_ENV_SEPARATOR)
        if len(parts) > 1:
            yield _env_path(parts, variable), environ[variable], variable


def _env_path(parts: list[str], variable: str) -> PathKey:
    if not all(parts):
        raise SettingsError(f"{variable} must be {ENV_PREFIX}SECTION{_ENV_SEPARATOR}KEY")
    table = tuple(parts[:2])
    if table in _PASS_THROUGH:
        return (*table, ".".join(parts[2:]).replace("_", "."))
    return tuple(parts)


def _from_set(text: str) -> Leaf:
    name, equals, value = text.partition("=")
    parts = [quoted or plain for quoted, plain in _PARTS_OF_SET.findall(name.strip())]
    if not equals or len(parts) < _LEAF_OF_TABLE:
        raise SettingsError(f"--set {name} must be --set section.key=value")
    place = f"--set {name.strip()}"
    if tuple(parts[:2]) in _PASS_THROUGH and len(parts) > _LEAF_OF_TABLE:
        return (*parts[:2], ".".join(parts[2:])), value, place
    if parts[0] == "targets" and len(parts) > _LEAF_OF_TABLE:
        return ("targets", ".".join(parts[1:-1]), parts[-1]), value, place
    return tuple(parts), value, place
