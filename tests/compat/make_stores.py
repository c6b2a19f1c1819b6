"""Make the store fixtures of every format version anew, by the code of the commits that wrote it.

    python -m tests.compat.make_stores

Needs the repository's history. A format that is changed gets a line in ``FORMATS``: the last commit
before the change for the old one, and HEAD for the new one until it is committed.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
FORMATS: Final = {
    ("wheel", 1): "82f3011",
    ("wheel", 2): "2c007b0",
    ("wheel", 3): "8efa3a4",
    ("wheel", 5): "d84b661",
    ("wheel", 6): "0f4db62",
    ("rocksdb", 1): "82f3011",
    ("rocksdb", 2): "8efa3a4",
    ("rocksdb", 3): "d84b661",
    ("rocksdb", 4): "916d33e",
}
"""A commit whose code writes each format. No service ever wrote format 4 of the wheel."""

_CHATTER: Final = ("LOG", "OPTIONS-", "LOCK", "IDENTITY")
"""RocksDB's files that say nothing of the content, by how their names begin."""


def fixture(kind: str, version: int) -> Path:
    """The archive of one format."""
    return HERE / "stores" / f"{kind}-{version}.tar.gz"


def main() -> None:
    """Write every archive."""
    for (kind, version), commit in FORMATS.items():
        with TemporaryDirectory() as scratch:
            code, shard = Path(scratch, "code"), Path(scratch, "shard")
            _check_out(commit, code)
            subprocess.run(
                [sys.executable, str(HERE / "write_store.py"), kind, str(shard)],
                env={**os.environ, "PYTHONPATH": str(code)},
                check=True,
            )
            if (shard / "VERSION").read_text().split()[:2] != [kind, str(version)]:
                raise AssertionError((kind, version, commit))
            _pack(shard, fixture(kind, version))


def _check_out(commit: str, folder: Path) -> None:
    archive = subprocess.run(
        ["git", "archive", commit, "delayservice", "connectors"],  # noqa: S607
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def _pack(shard: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with tarfile.open(target, "w:gz") as tar:
        for path in sorted(shard.rglob("*")):
            if not path.name.startswith(_CHATTER):
                tar.add(path, path.relative_to(shard), recursive=False)


if __name__ == "__main__":
    main()
