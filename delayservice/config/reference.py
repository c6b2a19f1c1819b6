"""Settings as text: the values in effect with their places, and the reference of all settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel, SecretStr

from delayservice.base.errors import SettingsError
from delayservice.config.layers import PathKey
from delayservice.config.settings import Loaded, Settings
from delayservice.config.units import format_duration

HIDDEN = "(hidden)"
_TYPE_WORDS = {"array": "list", "object": "table"}


class SettingRow(NamedTuple):
    """Name (``section.key``) and value of one setting, and its origin: ``default``, or its file,
    variable or ``--set``.
    """

    name: str
    value: object
    origin: str


def redacted(settings: Settings) -> dict[str, Any]:
    """Return the settings as JSON types, with every secret replaced by ``(hidden)``."""
    tree: dict[str, Any] = {}
    for path, value in _leaves((), settings):
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
    return tree


def effective(loaded: Loaded) -> list[SettingRow]:
    """Return all values in effect with their places, in the order of the reference; secrets are
    hidden.
    """
    return [
        SettingRow(".".join(path), value, loaded.origins.of(path))
        for path, value in _leaves((), loaded.settings)
    ]


def require_values(rows: Iterable[SettingRow], names: Iterable[str]) -> None:
    values = {row.name: row.value for row in rows}
    for name in names:
        if values.get(name) in (None, "", [], {}):
            raise SettingsError(f"{name} is not set, and is required here")


def as_text(name: str, value: object) -> str:
    # By the name of the setting, milliseconds and bytes get a unit.
    if value is None or value == {}:
        return ""
    if isinstance(value, list):
        return ", ".join(_quantity(name, item) for item in value)
    return str(value).lower() if isinstance(value, bool) else _quantity(name, value)


def secret_values(settings: Settings) -> tuple[str, ...]:
    """Return in clear text the secrets that are set directly, not in files, for the log to hide."""
    kafka = settings.kafka
    wrapped: list[object] = [
        settings.node.cluster_secret,
        *(one.token for one in settings.admin.tokens.values()),
        settings.zookeeper.password,
    ]
    for table in (kafka.client, kafka.consumer, kafka.producer, kafka.admin):
        wrapped.extend(table.values())
    return tuple(value.get_secret_value() for value in wrapped if isinstance(value, SecretStr))


def _leaves(path: PathKey, value: object) -> Iterator[tuple[PathKey, Any]]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _leaves((*path, name), getattr(value, name))
    elif isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves((*path, name), below)
    else:
        yield path, _shown(value)


def _shown(value: object) -> object:
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, tuple):
        return list(value)
    if value is None or isinstance(value, bool | int | str | float | dict):
        return value
    return str(value)


def reference() -> str:
    """Return the reference of all settings as Markdown, as in ``docs/configuration.md``."""
    schema = Settings.model_json_schema()
    parts = []
    for section, info in schema["properties"].items():
        holder = info["additionalProperties"] if section == "targets" else info
        definition = schema["$defs"][holder["$ref"].rpartition("/")[2]]
        title = "targets.NAME" if section == "targets" else section
        parts.append(_section(title, definition))
    return "\n".join(parts)


def _section(title: str, definition: dict[str, Any]) -> str:
    lines = [
        f"### [{title}]",
        "",
        _on_one_line(definition["description"].partition("\n\n")[0]),
        "",
    ]
    for key, field in definition["properties"].items():
        default, bounds = as_text(key, field.get("default")), _bounds(key, field)
        shown = (f" = `{default}`" if default else "") + (f" ({bounds})" if bounds else "")
        lines.append(f"- `{key}`{shown}: {_on_one_line(field['description'])}")
    return "\n".join(lines) + "\n"


def _on_one_line(docstring: str) -> str:
    return docstring.replace("\n", " ").strip()


def _bounds(key: str, field: dict[str, Any]) -> str:
    options = [field, *field.get("anyOf", []), field.get("items", {})]
    for option in options:
        if "enum" in option:
            return ", ".join(option["enum"])
        if "minimum" in option and "maximum" in option:
            return f"{_quantity(key, option['minimum'])} to {_quantity(key, option['maximum'])}"
        if "minimum" in option:
            return f"from {option['minimum']}"
    names: list[str] = [
        option["type"] for option in options if option.get("type") not in {None, "null"}
    ]
    return _TYPE_WORDS.get(names[0], "")


def _quantity(key: str, value: object) -> str:
    if not isinstance(value, int):
        return str(value)
    if "_ms" in key:
        return format_duration(value)
    if "bytes" in key:
        return _bytes(value)
    return str(value)


def _bytes(value: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size and value % size == 0:
            return f"{value // size}{unit}"
    return str(value)
