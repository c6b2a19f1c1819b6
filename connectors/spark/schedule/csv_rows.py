"""Reads CSV files as RFC 4180 defines them, and Python, Excel and databases write them.

Spark finds the files and their lines, and Python's ``csv`` the rows. Spark's own reader changes
line breaks and NUL characters within quotes, and reads columns by position.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from connectors.spark.common.frames import batch_of
from connectors.spark.schedule.mapping import CSV_PLACE, CSV_TEXT, REFUSAL
from delayservice.base.errors import InvalidRequestError

# Largest cell; what looks larger is a missing quote.
CELL_CHARS_MAX: Final = 64 * 1024 * 1024

_TEXT_CHARS_MAX: Final = 10_000
_HEADING_LINES_MAX: Final = 100
_BATCH_ROWS: Final = 5_000
_BATCH_CHARS: Final = 8 * 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"


class CsvRow(NamedTuple):
    """A row of a CSV file: ``line`` is the number of its first line, from 1; ``cells`` are in the
    order of the names that were asked for. A row that can't be read has ``refusal``, the reason,
    and ``text``.
    """

    line: int
    cells: Sequence[str]
    refusal: str | None = None
    text: str | None = None


class _Rows:
    """The lines of a file, which ``csv.reader`` takes one by one, and the rows that it returns."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        csv.field_size_limit(CELL_CHARS_MAX)
        self._lines = iter(lines)
        self._number = 0
        self._held: list[bytes] = []
        self._reader = csv.reader(self, strict=True)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._number += 1
        if self._number == 1:
            line = line.removeprefix(_BOM)
        self._held.append(line)
        return line.decode() + "\n"

    def row(self) -> CsvRow | None:
        self._held.clear()
        first = self._number + 1
        try:
            return CsvRow(first, next(self._reader))
        except StopIteration:
            return None
        except (csv.Error, UnicodeDecodeError) as exc:
            return self.refused(first, str(exc))

    def refused(self, line: int, why: str) -> CsvRow:
        text = b"\n".join(self._held).decode("utf-8", "replace")
        return CsvRow(line, (), why, text[:_TEXT_CHARS_MAX])


def csv_rows(lines: Iterable[bytes], names: Sequence[str]) -> Iterator[CsvRow]:
    """Yield the rows after the first, whose names must be ``names`` in any order."""
    rows = _Rows(lines)
    heading = rows.row() or CsvRow(1, ())
    wrong = _unusable(heading, names)
    order = [] if wrong else [heading.cells.index(name) for name in names]
    while (row := rows.row()) is not None:
        line, cells, refusal, _ = row
        if not cells and refusal is None:
            continue
        if wrong:
            refusal = f"the first line of its file can't be used: {wrong}"
        elif refusal is None and len(cells) != len(heading.cells):
            refusal = f"it has {len(cells)} cells, and the first line has {len(heading.cells)}"
        if refusal is None:
            yield CsvRow(line, [cells[place] for place in order])
        else:
            yield rows.refused(line, refusal)


def _unusable(heading: CsvRow, names: Collection[str]) -> str | None:
    cells = heading.cells
    if heading.refusal is None and len({name.lower() for name in cells}) < max(len(cells), 1):
        return f"it does not name each column once, but says {', '.join(cells) or 'nothing'}"
    if heading.refusal is None and set(cells) != set(names):
        return f"it names {', '.join(cells)}, and another file {', '.join(names)}"
    return heading.refusal


def read_csv(spark: SparkSession, where: str) -> DataFrame:
    """Return the rows of CSV files as strings, with the columns that their first lines name, those
    of folders named ``column=value``, and ``CSV_PLACE``, ``REFUSAL`` and ``CSV_TEXT``.

    Raises:
        InvalidRequestError: the first line of the first file does not name columns, or names one
            that a folder names, too.
    """
    text = spark.read.options(lineSep="\n").text(where)
    folders = [name for name in text.columns if name != "value"]
    names = _names(spark, text.inputFiles(), where)
    if twice := {name.lower() for name in names} & {name.lower() for name in folders}:
        raise InvalidRequestError(f"files and folders of {where} both name {', '.join(twice)}")
    # Spark splits large files; a row may go on behind the split.
    lines = text.select(
        sf.input_file_name().alias("file"),
        sf.col("_metadata.file_block_start").alias("block"),
        sf.monotonically_increasing_id().alias("number"),
        sf.col("value").cast("binary").alias("line"),
        *(sf.col(f"`{name}`").cast("string") for name in folders),
    )
    ordered = lines.repartition("file").sortWithinPartitions("file", "block", "number")
    columns = [CSV_PLACE, REFUSAL, CSV_TEXT, *names, *folders]
    schema = pa.schema([(name, pa.string()) for name in columns])
    lines = ordered.drop("block", "number")
    return lines.mapInArrow(_reading(names, schema), from_arrow_schema(schema))


def _names(spark: SparkSession, files: Iterable[str], where: str) -> list[str]:
    # Spark names files as URLs, and reads paths: a blank would be looked for as "%20".
    for file in sorted(map(unquote, files)):
        text = spark.read.options(lineSep="\n").text(file)
        first = text.where("_metadata.file_block_start = 0").select(sf.col("value").cast("binary"))
        lines = [bytes(row[0]) for row in first.limit(_HEADING_LINES_MAX).collect()]
        if lines:
            heading = _Rows(lines).row() or CsvRow(1, ())
            if wrong := _unusable(heading, heading.cells):
                raise InvalidRequestError(f"the first line of {file} can't be read: {wrong}")
            return list(heading.cells)
    raise InvalidRequestError(f"{where} holds no file with a first line that names the columns")


def _reading(
    names: Sequence[str], schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[tuple[str | None, ...]] = []
        chars, nothing = 0, (None,) * len(names)
        for (file, *folders), lines in groupby(_lines_of(batches), itemgetter(0)):
            for row in csv_rows((line for _, line in lines), names):
                cells = row.cells or nothing
                held.append((f"{file}:{row.line}", row.refusal, row.text, *cells, *folders))
                chars += sum(map(len, row.cells))
                if len(held) == _BATCH_ROWS or chars > _BATCH_CHARS:
                    yield batch_of(held, schema)
                    held, chars = [], 0
        if held:
            yield batch_of(held, schema)

    return read


def _lines_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Yield each line with its place: the file, and the values of its folders."""
    for batch in batches:
        file, line, *folders = (column.to_pylist() for column in batch.columns)
        yield from zip(zip(file, *folders, strict=True), line, strict=True)
