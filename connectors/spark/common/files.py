"""Reads and writes small files beside Parquet: in local folders, HDFS and object stores.

It uses Arrow's file systems instead of Java's, so that Spark may be in another process (Spark
Connect). A path without a scheme such as ``s3://`` is local. Failures of the file system are
``DelayServiceError``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import dataset, fs

from delayservice.base.errors import DelayServiceError


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as exc:
        raise DelayServiceError(f"a file can't be read or written: {exc}") from exc


def write_text(path: str, text: str) -> None:
    write_bytes(path, text.encode())


@_explained()
def write_bytes(path: str, data: bytes) -> None:
    # Where the file system allows it, readers see either the old content or the new one. A process
    # that is killed meanwhile leaves a hidden file, which ``names_in`` passes over.
    system, place = _located(path)
    folder, _, name = place.rpartition("/")
    system.create_dir(folder, recursive=True)
    with system.open_output_stream(f"{folder}/.{name}") as stream:
        stream.write(data)
    system.move(f"{folder}/.{name}", place)


@_explained()
def read_bytes(path: str) -> bytes | None:
    """Return the content of a file, or None if there is none."""
    system, place = _located(path)
    if not is_there(path):
        return None
    with system.open_input_stream(place) as stream:
        return bytes(stream.read())


def read_text(path: str) -> str | None:
    data = read_bytes(path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as exc:
        raise DelayServiceError(f"{path} is damaged: it is not UTF-8 ({exc.reason})") from exc


@_explained()
def is_there(path: str) -> bool:
    system, place = _located(path)
    return bool(system.get_file_info(place).type != fs.FileType.NotFound)


@_explained()
def names_in(path: str) -> list[str]:
    """Return the names in a folder in ascending order, without hidden ones, which begin with a
    dot; none if there is no folder.
    """
    system, place = _located(path)
    found = system.get_file_info(fs.FileSelector(place, allow_not_found=True))
    return sorted(info.base_name for info in found if not info.base_name.startswith("."))


@_explained()
def parquet_range(path: str, column: str) -> tuple[int, int, int]:
    """Return the number of rows of a Parquet folder, and the least and greatest whole number in a
    column, from the files' footers; zeros without such a column.
    """
    system, place = _located(path)
    groups: list[pq.RowGroupMetaData] = []
    for name in names_in(path):
        if name.endswith(".parquet"):
            with system.open_input_file(f"{place}/{name}") as file:
                footer = pq.ParquetFile(file).metadata
            groups += [footer.row_group(number) for number in range(footer.num_row_groups)]
    rows = sum(group.num_rows for group in groups)
    told = [
        chunk.statistics
        for group in groups
        for chunk in (group.column(number) for number in range(group.num_columns))
        if chunk.path_in_schema == column and chunk.statistics is not None
    ]
    first = min((one.min for one in told), default=0)
    return rows, first, max((one.max for one in told), default=0)


@_explained()
def read_parquet(
    paths: Sequence[str],
    schema: pa.Schema,
    where: dataset.Expression | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Return the rows of some Parquet folders, or ``limit`` of them."""
    files = [
        f"{path}/{name}" for path in paths for name in names_in(path) if name.endswith(".parquet")
    ]
    if not files:
        return schema.empty_table()
    system, _ = _located(files[0])
    places = [_located(file)[1] for file in files]
    read = dataset.dataset(places, schema=schema, format="parquet", filesystem=system)
    return read.to_table(filter=where) if limit is None else read.head(limit, filter=where)


@_explained()
def write_parquet(path: str, rows: pa.Table) -> None:
    """Write rows to a Parquet folder, in place of what is there."""
    delete(path)
    system, place = _located(path)
    system.create_dir(place, recursive=True)
    pq.write_table(rows, f"{place}/part-00000.parquet", filesystem=system)


@_explained()
def is_replaceable(path: str) -> bool:
    """Return whether there is nothing at ``path``, or only files of Spark."""
    system, place = _located(path)
    if system.get_file_info(place).type == fs.FileType.File:
        return False
    return all(name.startswith(("part-", "_")) for name in names_in(path))


@_explained()
def delete(path: str) -> None:
    system, place = _located(path)
    kind = system.get_file_info(place).type
    if kind == fs.FileType.Directory:
        system.delete_dir(place)
    elif kind == fs.FileType.File:
        system.delete_file(place)


def _located(path: str) -> tuple[fs.FileSystem, str]:
    if "://" in path:
        system, place = fs.FileSystem.from_uri(path.replace("s3a://", "s3://", 1))
    else:
        system, place = fs.LocalFileSystem(), str(Path(path.removeprefix("file:")).absolute())
    return system, place.rstrip("/")
