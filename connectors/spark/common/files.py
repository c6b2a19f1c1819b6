"""Reads and writes small files beside Parquet: in local folders, HDFS and object stores.

It uses Arrow's file systems instead of Java's, so that Spark may be in another process (Spark
Connect). A path without a scheme such as ``s3://`` is local.
"""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs

from delayservice.base.errors import DelayServiceError


def write_text(path: str, text: str) -> None:
    # Where the file system allows it, readers see either the old content or the new one. A process
    # that is killed meanwhile leaves a hidden file, which ``names_in`` passes over.
    system, place = _located(path)
    folder, _, name = place.rpartition("/")
    system.create_dir(folder, recursive=True)
    with system.open_output_stream(f"{folder}/.{name}") as stream:
        stream.write(text.encode())
    system.move(f"{folder}/.{name}", place)


def read_text(path: str) -> str | None:
    """Return the content of a file, or None if there is none."""
    system, place = _located(path)
    if not is_there(path):
        return None
    with system.open_input_stream(place) as stream:
        data = bytes(stream.read())
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise DelayServiceError(f"{path} is damaged: it is not UTF-8 ({exc.reason})") from exc


def is_there(path: str) -> bool:
    system, place = _located(path)
    return bool(system.get_file_info(place).type != fs.FileType.NotFound)


def names_in(path: str) -> list[str]:
    """Return the names in a folder in ascending order, without hidden ones, which begin with a
    dot; none if there is no folder.
    """
    system, place = _located(path)
    found = system.get_file_info(fs.FileSelector(place, allow_not_found=True))
    return sorted(info.base_name for info in found if not info.base_name.startswith("."))


def is_replaceable(path: str) -> bool:
    """Return whether there is nothing at ``path``, or only files of Spark."""
    system, place = _located(path)
    if system.get_file_info(place).type == fs.FileType.File:
        return False
    return all(name.startswith(("part-", "_")) for name in names_in(path))


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
