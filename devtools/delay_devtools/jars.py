"""The jars of Kafka and ZooKeeper: pinned by hash, fetched once, kept in a cache folder.

A lock is a file that lists the jars of one version of Kafka, each with its SHA-256 and size. A jar
counts as present only while its hash is right, so a cache that was copied by hand or damaged by a
crash is repaired.
"""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path
from rich.console import Console

from delayservice.base.errors import ClusterError
from delayservice.smoke.progress import steps

CACHE_VARIABLE = "DELAY_DEV_JARS"

# Name of the environment variable with the address of a Maven repository to use instead of the
# public one.
MIRROR_VARIABLE = "DELAY_DEV_MIRROR"

# Name of the environment variable with the version of Kafka to start, one of KAFKA_LOCKS.
KAFKA_VARIABLE = "DELAY_DEV_KAFKA"

KAFKA_DEFAULT: Final = "4.3"
# File name of the lock by version of Kafka, in the folder of this module. All locks contain the
# same ZooKeeper.
KAFKA_LOCKS: Final = {KAFKA_DEFAULT: "jars.lock", "3.9": "jars-3.9.lock"}

_DOWNLOADS_AT_ONCE = 4
_ATTEMPTS = 3
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Jar:
    """Line of a lock: Maven coordinate ``group:artifact:version``, SHA-256 in hex, size
    in bytes.
    """

    coordinate: str
    sha256: str
    bytes: int

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def cache_folder() -> Path:
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override).expanduser() if override else user_cache_path("delayservice") / "jars"


def read_lock(kafka: str | None = None) -> tuple[Jar, ...]:
    """Return the jars of ZooKeeper and a version of Kafka, one of ``KAFKA_LOCKS``."""
    kafka = kafka or os.environ.get(KAFKA_VARIABLE) or KAFKA_DEFAULT
    if kafka not in KAFKA_LOCKS:
        raise ClusterError(
            f"There are no jars of Kafka {kafka!r}. Choose one of {', '.join(KAFKA_LOCKS)}, as an "
            f"option or in {KAFKA_VARIABLE}."
        )
    return parse_lock(resources.files(__package__).joinpath(KAFKA_LOCKS[kafka]).read_text("utf-8"))


def parse_lock(text: str) -> tuple[Jar, ...]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return tuple(_parse_line(line) for line in lines)


def _parse_line(line: str) -> Jar:
    try:
        coordinate, sha256, size = line.split()
        return Jar(coordinate, sha256, int(size))
    except ValueError as exc:
        message = f"The jar lock has a line it should not have: {line!r}. Run `make lock-jars`."
        raise ClusterError(message) from exc


def ensure_jars(jars: Sequence[Jar] | None = None, folder: Path | None = None) -> tuple[Path, ...]:
    """Return the paths of the jars after fetching missing and damaged ones. Several processes may
    call this at once: one fetches, the others wait for it.
    """
    jars = read_lock() if jars is None else jars
    folder = cache_folder() if folder is None else folder
    if _missing(jars, folder):
        with _only_one(folder):
            _fetch_all(_missing(jars, folder), folder)
    return tuple(folder / jar.file_name for jar in jars)


def _missing(jars: Sequence[Jar], folder: Path) -> list[Jar]:
    return [jar for jar in jars if not _is_intact(folder / jar.file_name, jar)]


def _is_intact(path: Path, jar: Jar) -> bool:
    try:
        return path.stat().st_size == jar.bytes and sha256_of(path) == jar.sha256
    except OSError:
        return False


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as exc:
        message = f"The jar folder {folder} is not writable: {exc}. Set {CACHE_VARIABLE}."
        raise ClusterError(message) from exc
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch_all(jars: Sequence[Jar], folder: Path) -> None:
    if not jars:
        return
    console = Console(stderr=True)
    with (
        steps(console, is_shown=console.is_terminal) as shown,
        tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch,
        ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool,
    ):
        fetched = shown.bar("Fetching Java packages", len(jars))
        fetches = [pool.submit(_fetch, jar, Path(scratch), folder) for jar in jars]
        try:
            for number, fetch in enumerate(fetches, 1):
                fetch.result()
                fetched(number)
        finally:
            pool.shutdown(cancel_futures=True)


def _fetch(jar: Jar, scratch: Path, folder: Path) -> None:
    path = _download(jar, scratch)
    actual = sha256_of(path)
    if actual != jar.sha256:
        raise ClusterError(
            f"{jar.coordinate} was fetched with SHA-256 {actual}, the lock says {jar.sha256}. "
            f"Nothing was kept. Check the mirror ({MIRROR_VARIABLE}) or what sits in between."
        )
    path.replace(folder / jar.file_name)


def _download(jar: Jar, scratch: Path) -> Path:
    # Imported late: only a first start downloads, and only then jgo is needed.
    import requests  # noqa: PLC0415
    from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415

    mirror = os.environ.get(MIRROR_VARIABLE)
    context = MavenContext(
        resolver=PythonResolver(),
        repo_cache=scratch,  # never the user's own Maven folder
        remote_repos={"mirror": mirror.rstrip("/")} if mirror else None,
        timeout=_TIMEOUT_SECONDS,
    )
    artifact = context.create_dependency(jar.coordinate).artifact
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            path = context.resolver.download(artifact)
            if path is not None:
                return Path(path)
        except (requests.RequestException, RuntimeError, OSError) as exc:
            failure = exc
            # jgo refuses to overwrite a partial download.
            if artifact.cached_path is not None:
                artifact.cached_path.unlink(missing_ok=True)
    raise ClusterError(
        f"{jar.coordinate} could not be fetched ({failure}). Without a network, copy the jar "
        f"folder ({cache_folder()}) from a machine that has it, or set {CACHE_VARIABLE} to such "
        f"a folder; behind a mirror, set {MIRROR_VARIABLE} to its address."
    ) from failure
