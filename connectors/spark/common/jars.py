"""Installs Spark's connector to Kafka, so that jobs download nothing.

python -m connectors.spark.common.jars

Spark's resolver downloads the jars. A jar whose hash differs from ``jars.lock`` is refused.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from connectors.spark.common.session import (
    FAILURES,
    LOCK,
    PACKAGES,
    SparkJar,
    locked,
    open_session,
    reason,
    spark_folder,
)
from delayservice.base.errors import DelayServiceError

_HEADER: Final = """\
# Spark's connector to Kafka, as far as PySpark lacks it: coordinate, SHA-256, size in bytes.
# Written by `make lock-jars`; the root is PACKAGES in session.py.
"""


def install(fetched: Path, folder: Path, jars: Sequence[SparkJar]) -> None:
    """Check the hashes of downloaded jars, and copy each atomically from ``fetched`` to
    ``folder``.
    """
    for jar in jars:
        path = fetched / jar.fetched_name
        try:
            actual = _sha256(path)
            if actual != jar.sha256:
                raise DelayServiceError(
                    f"{jar.coordinate} was fetched with SHA-256 {actual}, the lock says "
                    f"{jar.sha256}. It was not installed; check the mirror in Spark's settings"
                )
            part = folder / f".{jar.file_name}"
            shutil.copyfile(path, part)
            part.replace(folder / jar.file_name)
        except OSError as exc:
            raise DelayServiceError(
                f"{jar.coordinate} can't be put into {folder}: {exc}. Run this as the owner of the "
                "folder"
            ) from exc


def fetch(scratch: Path) -> Path:
    """Download the Kafka connector and its dependencies; return the folder of the jars."""
    conf = {"spark.jars.packages": ",".join(PACKAGES), "spark.jars.ivy": str(scratch)}
    try:
        open_session("jars", master="local[1]", conf=conf).stop()
    except FAILURES as exc:
        raise DelayServiceError(f"the connector was not fetched: {reason(exc)}") from exc
    return scratch / "jars"


def write_lock(fetched: Path, lock: Path) -> None:
    # Jars that PySpark lacks, or that the present lock file names.
    own = spark_folder()
    lines = []
    for path in sorted(fetched.iterdir()):
        group, _, name = path.name.partition("_")
        artifact, _, version = name.removesuffix(".jar").rpartition("-")
        if not (own / name).exists() or (group, artifact) in _named():
            size = path.stat().st_size
            lines.append(f"{group}:{artifact}:{version} {_sha256(path)} {size}\n")
    lock.write_text(_HEADER + "".join(lines), "utf-8")


def _named() -> set[tuple[str, str]]:
    return {(group, artifact) for group, artifact, _ in (j.coordinate.split(":") for j in locked())}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str]) -> int:
    try:
        with tempfile.TemporaryDirectory() as scratch:
            fetched = fetch(Path(scratch))
            if "--lock" in arguments:
                write_lock(fetched, Path(__file__).with_name(LOCK))
            else:
                install(fetched, spark_folder(), locked())
    except DelayServiceError as exc:
        print(exc, file=sys.stderr)  # noqa: T201  # a program of one line
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
