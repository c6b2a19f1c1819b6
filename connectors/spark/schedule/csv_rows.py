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


class _Lines:
    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self.number = 0
        self.held: list[bytes] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        if self.number == 1:
            line = line.removeprefix(_BOM)
        self.held.append(line)
        return line.decode() + "\n"


def csv_rows(lines: Iterable[bytes], names: Sequence[str]) -> Iterator[CsvRow]:
    """Yield the rows after the first, whose names must be ``names`` in any order."""
    csv.field_size_limit(CELL_CHARS_MAX)
    source = _Lines(lines)
    reader = csv.reader(source, strict=True)
    heading: list[str] | None = None
    wrong: str | None = None
    order: list[int] = []
    while True:
        source.held.clear()
        first, cells = source.number + 1, list[str]()
        try:
            cells = next(reader)
            refusal = None
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as exc:
            refusal = str(exc)
        if heading is None:
            heading = cells
            wrong = refusal or _unusable(cells, names)
            order = [] if wrong else [cells.index(name) for name in names]
            continue
        if not cells and refusal is None:
            continue
        if refusal is None and len(cells) != len(heading):
            refusal = f"it has {len(cells)} cells, and the first line has {len(heading)}"
        if wrong is not None:
            refusal = f"the first line of its file can't be used: {wrong}"
        if refusal is None:
            yield CsvRow(first, [cells[place] for place in order])
        else:
            text = b"\n".join(source.held).decode("utf-8", "replace")
            yield CsvRow(first, (), refusal, text[:_TEXT_CHARS_MAX])


def _unusable(heading: Sequence[str], names: Collection[str]) -> str | None:
    if not heading or len({name.lower() for name in heading}) < len(heading):
        return f"it does not name each column once, but says {', '.join(heading) or 'nothing'}"
    if set(heading) != set(names):
        return f"it names {', '.join(heading)}, and another file {', '.join(names)}"
    return None


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
    for file in sorted(files):
        text = spark.read.options(lineSep="\n").text(file)
        first = text.where("_metadata.file_block_start = 0").select(sf.col("value").cast("binary"))
        lines = [bytes(row[0]) for row in first.limit(_HEADING_LINES_MAX).collect()]
        if lines:
            try:
                heading = next(csv.reader(_Lines(lines), strict=True))
            except (csv.Error, UnicodeDecodeError) as exc:
                raise InvalidRequestError(f"the first line of {file} can't be read: {exc}") from exc
            wrong = _unusable(heading, heading)
            if wrong is not None:
                raise InvalidRequestError(f"the first line of {file} can't be read: {wrong}")
            return heading
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
