"""Small files beside Parquet, wherever Spark writes: local folders, HDFS, object stores.

By Arrow's file systems, and not by Java's, so that Spark may run in another process (Spark
Connect). A path without a scheme is local.
"""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs


def write_text(path: str, text: str) -> None:
    """Write a file in place of one that is there. Where the file system can, readers see the old
    content or the new one, and no part of it.
    """
    system, place = _located(path)
    system.create_dir(place.rpartition("/")[0], recursive=True)
    with system.open_output_stream(f"{place}.new") as stream:
        stream.write(text.encode())
    system.move(f"{place}.new", place)


def read_text(path: str) -> str | None:
    """Return the content of a file, or None if there is no such file."""
    system, place = _located(path)
    if not is_there(path):
        return None
    with system.open_input_stream(place) as stream:
        return bytes(stream.read()).decode()


def is_there(path: str) -> bool:
    """Return whether there is such a file or folder."""
    system, place = _located(path)
    return bool(system.get_file_info(place).type != fs.FileType.NotFound)


def names_in(path: str) -> list[str]:
    """Return the names of what a folder holds, sorted; none if there is no such folder."""
    system, place = _located(path)
    found = system.get_file_info(fs.FileSelector(place, allow_not_found=True))
    return sorted(info.base_name for info in found)


def is_replaceable(path: str) -> bool:
    """Return whether there is nothing but what Spark wrote, which it may replace."""
    system, place = _located(path)
    if system.get_file_info(place).type == fs.FileType.File:
        return False
    return all(name.startswith(("part-", "_", ".")) for name in names_in(path))


def delete(path: str) -> None:
    """Delete a file, or a folder and what it holds, if it is there."""
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
