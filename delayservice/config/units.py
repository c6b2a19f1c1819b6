"""Types of settings: durations, sizes, lists, names of topics, addresses, files with secrets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    WithJsonSchema,
)

from delayservice.base.errors import SettingsError
from delayservice.contract.times import read_duration_ms

MIB = 1024 * 1024
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
YEAR_MS = 365 * DAY_MS

_UNIT_MS = {
    "ms": 1,
    "s": 1_000,
    "m": MINUTE_MS,
    "h": 60 * MINUTE_MS,
    "d": DAY_MS,
    "w": 7 * DAY_MS,
    "y": YEAR_MS,
}


def format_duration(ms: int) -> str:
    """Return ``ms`` as text with the largest unit of which it is a multiple: ``90s``, ``2h``."""
    if ms == 0:
        return "0ms"
    unit = next(unit for unit, size in reversed(_UNIT_MS.items()) if ms % size == 0)
    return f"{ms // _UNIT_MS[unit]}{unit}"


def _read_ms(value: object) -> object:
    if isinstance(value, str) and not _is_number(value):
        return read_duration_ms(value)
    return value


def _read_s(value: object) -> object:
    if isinstance(value, str) and not _is_number(value):
        milliseconds = read_duration_ms(value)
        if milliseconds % _UNIT_MS["s"]:
            raise ValueError(f"{value!r} is finer than a second")
        return milliseconds // _UNIT_MS["s"]
    return value


def _is_number(text: str) -> bool:
    return text.strip().lstrip("+-").isdecimal()


def _read_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def matching(pattern: str, told: str) -> AfterValidator:
    # ``told``: what the error says instead of the pattern.
    regex = re.compile(pattern)

    def read(text: str) -> str:
        if not regex.fullmatch(text):
            raise ValueError(told)
        return text

    return AfterValidator(read)


def names_of(chars_min: int, chars_max: int, more: str = "") -> AfterValidator:
    told = f"write {chars_min} to {chars_max} of the characters A-Z a-z 0-9 . _ - {more}".rstrip()
    return matching(rf"[A-Za-z0-9._{re.escape(more)}-]{{{chars_min},{chars_max}}}", told)


def _read_topic(name: str) -> str:
    if name in {".", ".."}:
        raise ValueError("Kafka allows no topic of this name")
    return name


# Type of a setting in milliseconds; text may have a unit (``2h``).
DurationMs: TypeAlias = Annotated[int, BeforeValidator(_read_ms)]

# Type of a setting in seconds; text may have a unit (``1m``).
DurationS: TypeAlias = Annotated[int, BeforeValidator(_read_s)]

# Validator of a list setting that also reads text: JSON, or items separated by commas.
ListText = BeforeValidator(_read_list)

_BYTES_MIN = 64 * 1024
_BYTES_MAX = 64 * 1024 * MIB

# Type of a setting in bytes; text may have a unit (``64MiB``).
Bytes: TypeAlias = Annotated[
    ByteSize,
    Field(ge=_BYTES_MIN, le=_BYTES_MAX),
    # pydantic leaves the bounds of a ByteSize out of the schema that the reference is made from.
    WithJsonSchema({"type": "integer", "minimum": _BYTES_MIN, "maximum": _BYTES_MAX}),
]

# Type of a setting for the largest size of one header, in bytes.
HeaderBytes: TypeAlias = Annotated[
    ByteSize,
    Field(ge=256, le=64 * 1024),
    WithJsonSchema({"type": "integer", "minimum": 256, "maximum": 64 * 1024}),
]

# Type of a setting: a topic name that Kafka allows.
Topic: TypeAlias = Annotated[str, names_of(1, 249), AfterValidator(_read_topic)]

# Type of a setting: a pattern of topic names. ``*`` matches any characters, ``?`` one.
TopicPattern: TypeAlias = Annotated[str, names_of(1, 249, "*?")]

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
_PORT_MAX = 65_535


def _read_ports(text: str) -> str:
    ports = [address.rpartition(":")[2].strip() for address in text.split(",")]
    if any(port.isdecimal() and int(port) > _PORT_MAX for port in ports):
        raise ValueError(f"a port is {_PORT_MAX} at most")
    return text


# Type of a setting: address ``host:port`` to listen on; empty: the server is off.
Listen: TypeAlias = Annotated[
    str,
    matching(rf"(?:{_HOST}:[0-9]{{1,5}})?", "write host:port, or nothing for no server"),
    AfterValidator(_read_ports),
]

# Type of a setting: addresses ``host:port`` to connect to, separated by commas; empty: none.
Servers: TypeAlias = Annotated[
    str,
    matching(
        rf"(?:{_HOST}:[0-9]{{1,5}}(?:,(?!$)|$))*",
        "write host:port for each server, separated by commas, without blanks",
    ),
    AfterValidator(_read_ports),
]


# Type of a setting: brokers as librdkafka takes them, so ports may be left out; empty: none.
Brokers: TypeAlias = Annotated[
    str,
    matching(
        rf"(?:(?:[A-Za-z0-9_]+://)?{_HOST}(?::[0-9]{{1,5}})?(?:\s*,\s*(?!$)|$))*",
        "write host:port for each broker, separated by commas",
    ),
    AfterValidator(_read_ports),
]


class Section(BaseModel):
    """Base class of the sections of the settings: immutable, without unknown keys, and with errors
    that do not quote the input, as it may be secret. The docstring of a setting is its description.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
        use_attribute_docstrings=True,
    )


def read_secret_bytes(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise SettingsError(f"{setting} can't be read: {exc}") from exc


def read_secret_text(setting: str, given: SecretStr | None, path: Path | None) -> str | None:
    """Return a secret from its setting, or from its file, UTF-8 without white space around it;
    None: neither is set. ``setting``: names the file in error messages.
    """
    if given is not None:
        return given.get_secret_value()
    if path is None:
        return None
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{setting} can't be read: {exc}") from exc
