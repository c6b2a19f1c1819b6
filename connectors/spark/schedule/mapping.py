"""Maps the rows of any DataFrame to delayed records, by columns or fixed texts.

It uses Spark expressions only; no row passes through Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as sf

from delayservice.base.errors import InvalidRequestError
from delayservice.contract import names
from delayservice.contract.input_headers import RESERVED
from delayservice.contract.request import delay_ms, instant_ms

FIXED: Final = "="

MAPPABLE: Final = frozenset(
    {
        names.DELAY_EXPIRES_AT,
        names.DELAY_WINDOW_MS,
        names.DELAY_TARGET_PARTITION,
        names.DELAY_CRON,
        names.DELAY_EVERY,
        names.DELAY_TIMES,
        names.DELAY_TIMEZONE,
    }
)
"""Headers of the service that may be mapped in ``Fields.headers``; each of its other headers has a
field of its own in ``Fields``."""

REFUSAL: Final = "row.refusal"
"""Column of rows: why the row can't be read; null: it can."""
CSV_PLACE: Final = "csv.place"
"""Column of rows of CSV files: file and line of the row, ``file:line``."""
CSV_TEXT: Final = "csv.text"
"""Column of rows of CSV files: lines of a row that can't be read; null: it can."""
PLACE: Final = "kafka.place"
"""Column of rows from a topic: place of the record, ``topic:partition:offset``."""
VALUE: Final = "kafka.value"
KEY: Final = "kafka.key"
"""Columns of rows from a topic: unchanged value (``VALUE``) and key (``KEY``) of the record."""
_OWN: Final = frozenset({REFUSAL, CSV_PLACE, CSV_TEXT})
_ID_DIGITS: Final = 32
_WHOLE = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_NESTED = (types.StructType, types.ArrayType, types.MapType)
_US_PER_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Mapping from the columns of a row to the parts of a delayed record.

    ``at``, ``after``, ``target`` and the values in ``headers`` name a column, or else are fixed
    texts; with the prefix ``=`` they are always fixed. ``value``, ``key`` and ``id`` name columns.

    Attributes:
        target: the target topic; None: the delay topic's default target.
        at: due time: a timestamp, epoch milliseconds or RFC 3339. Either ``at`` or ``after`` is
            needed.
        after: delay from the moment of writing: milliseconds or an ISO 8601 duration; a fixed text
            may also be like ``30s`` or ``2h``.
        value: value of the delayed record; None: the whole row, as JSON with sorted names.
            Nested columns become JSON, other columns text or bytes.
        key: key of the delivered record; None: no key.
        id: id of the delayed record; None: ``job`` followed by a hash of the row, or for rows from
            a topic by the record's partition and offset.
        headers: name and value of each further header.
        job: prefix of every id that is generated.
    """

    target: str | None = None
    at: str | None = None
    after: str | None = None
    value: str | None = None
    key: str | None = None
    id: str | None = None
    headers: Sequence[tuple[str, str]] = ()
    job: str = ""


def drafts(rows: DataFrame, fields: Fields) -> DataFrame:
    """Return a row for each row of ``rows``, with the delayed record that it asks for, unchecked.

    Returns:
        In this order: ``file`` string, the place of the row, or empty; ``id`` and
        ``value`` binary; ``headers`` array of ``{key: string, value: binary}``, in the order of
        writing; ``row`` string, the row as JSON, or the value of a record of a topic; ``refusal``
        string, why the row can't be read, or null.

    Raises:
        InvalidRequestError: a column is missing or has a wrong type, or the fields contradict each
            other.
    """
    if PLACE in rows.columns:
        file, text = _column(PLACE), _column(VALUE).cast("string")
        named = sf.substring_index(file, ":", -2)
    else:
        names = _columns(rows)
        kind = types.StructType([rows.schema[name] for name in names])
        text = _json(sf.struct(*map(_column, names)), kind)
        file = sf.input_file_name()
        if CSV_PLACE in rows.columns:
            file, text = _column(CSV_PLACE), sf.coalesce(_column(CSV_TEXT), text)
        named = sf.substring(sf.sha2(text, 256), 1, _ID_DIGITS)
    is_refused = REFUSAL in rows.columns
    made = sf.concat(sf.lit(f"{fields.job}:"), named).cast("binary")
    record_id = made if fields.id is None else _bytes(rows, "id", fields.id)
    value = text.cast("binary") if fields.value is None else _bytes(rows, "value", fields.value)
    headers = sf.array(*_headers(rows, fields, record_id))
    return rows.select(
        file.alias("file"),
        record_id.alias("id"),
        value.alias("value"),
        headers.alias("headers"),
        text.alias("row"),
        (_column(REFUSAL) if is_refused else sf.lit(None).cast("string")).alias("refusal"),
    )


def _columns(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if name not in _OWN]


def _headers(rows: DataFrame, fields: Fields, record_id: Column) -> list[Column]:
    if (fields.at is None) == (fields.after is None):
        raise InvalidRequestError("a row needs one due time: give at or after, and not both")
    if fields.at is not None:
        found = [_header(names.DELAY_AT, _chosen(rows, "at", fields.at))]
    else:
        found = [_header(names.DELAY_AFTER, _chosen(rows, "after", fields.after or ""))]
    if fields.target is not None:
        found.append(_header(names.DELAY_TARGET_TOPIC, _chosen(rows, "target", fields.target)))
    found.append(_header(names.DELAY_ID, record_id))
    no_key = sf.lit(None).cast("binary")
    key = no_key if fields.key is None else _bytes(rows, "key", fields.key)
    found.append(_header(names.DELAY_TARGET_KEY, key))
    for name, text in fields.headers:
        if name in RESERVED and name not in MAPPABLE:
            raise InvalidRequestError(
                f"header {name} is the service's and can't be mapped: use the option of that "
                f"meaning, or one of {', '.join(sorted(MAPPABLE))}"
            )
        found.append(_header(name, _chosen(rows, f"header {name}", text)))
    return found


def _header(name: str, value: Column) -> Column:
    return sf.struct(sf.lit(name).alias("key"), value.alias("value"))


# What a column may hold, and what reads a fixed text, in ms.
_TIMES: Final[Mapping[str, tuple[str, Callable[[str, str], int]]]] = {
    "at": (
        "a due time (RFC 3339 as text, whole epoch milliseconds, or a timestamp with a time zone)",
        instant_ms,
    ),
    "after": ("a delay (whole milliseconds, or an ISO 8601 duration as text)", delay_ms),
}


def _chosen(rows: DataFrame, what: str, text: str) -> Column:
    # The text names a column, or is taken itself: without the prefix "=", if it has that.
    if not text.startswith(FIXED) and text in _columns(rows):
        return (_time if what in _TIMES else _bytes)(rows, what, text)
    fixed = text.removeprefix(FIXED)
    try:
        return sf.lit(str(_TIMES[what][1](what, fixed)) if what in _TIMES else fixed).cast("binary")
    except InvalidRequestError as exc:
        raise InvalidRequestError(f"{exc}; {_no_column(rows, text)}") from exc


def _bytes(rows: DataFrame, what: str, name: str) -> Column:
    column, kind = _column(name), _type(rows, what, name)
    if CSV_PLACE in rows.columns and what != "value":
        column = sf.nullif(column, sf.lit(""))  # CSV has no null: an empty cell says nothing
    if isinstance(kind, types.BinaryType):
        return column
    if isinstance(kind, _NESTED):
        return _json(column, kind).cast("binary")
    return column.cast("string").cast("binary")


def _time(rows: DataFrame, what: str, name: str) -> Column:
    kind = _type(rows, what, name)
    if what == "at" and isinstance(kind, types.TimestampType):
        # Rounded up to a millisecond, so that no delivery is early.
        us = sf.unix_micros(_column(name))
        return sf.ceil(us / sf.lit(_US_PER_MS)).cast("string").cast("binary")
    if isinstance(kind, (*_WHOLE, types.StringType)):
        return _bytes(rows, what, name)
    raise InvalidRequestError(f"column {name} can't be {_TIMES[what][0]}: {kind.simpleString()}")


def _type(rows: DataFrame, what: str, name: str) -> types.DataType:
    if name not in _columns(rows):
        raise InvalidRequestError(f"{what}: {_no_column(rows, name)}")
    return rows.schema[name].dataType


def _no_column(rows: DataFrame, name: str) -> str:
    return f"the input has no column {name!r}, it has {', '.join(_columns(rows))}"


def _sorted(column: Column, kind: types.DataType) -> Column:
    """Sort the fields of all structs by name: their order is that of the first file, which may be a
    new one.
    """
    if isinstance(kind, types.StructType):
        fields = [
            _sorted(column.getField(one.name), one.dataType).alias(one.name)
            for one in sorted(kind, key=attrgetter("name"))
        ]
        return sf.when(column.isNotNull(), sf.struct(*fields))
    if isinstance(kind, types.ArrayType):
        return sf.transform(column, lambda one: _sorted(one, kind.elementType))
    if isinstance(kind, types.MapType):
        return sf.transform_values(column, lambda _, one: _sorted(one, kind.valueType))
    return column


def _json(column: Column, kind: types.DataType) -> Column:
    # Spark would write milliseconds: rows that differ by less would have the same made id.
    formats = {
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    }
    return sf.to_json(_sorted(column, kind), formats)


def _column(name: str) -> Column:
    # The name may contain dots and backticks.
    escaped = name.replace("`", "``")
    return sf.col(f"`{escaped}`")
