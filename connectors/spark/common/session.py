"""Opens Spark sessions: in this process, or in the Java process of ``spark-submit``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from delayservice.base.errors import DelayServiceError

PACKAGES: Final = ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",)
"""Packages that Spark needs, as Maven coordinates; ``spark-submit --packages`` takes them."""

LOCK: Final = "jars.lock"


class SparkJar(NamedTuple):
    """Coordinate ``group:artifact:version``, SHA-256 in hex, size in bytes."""

    coordinate: str
    sha256: str
    bytes: int

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def fetched_name(self) -> str:
        # Spark's resolver names jars so in the folder into which it downloads them.
        group, artifact, version = self.coordinate.split(":")
        return f"{group}_{artifact}-{version}.jar"


def locked() -> tuple[SparkJar, ...]:
    """Return the jars that the Kafka connector needs and PySpark lacks, from the lock file."""
    text = resources.files(__package__).joinpath(LOCK).read_text("utf-8")
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return tuple(SparkJar(coordinate, sha256, int(size)) for coordinate, sha256, size in rows)


def spark_folder() -> Path:
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars")


def are_installed() -> bool:
    folder = spark_folder()
    return all((folder / jar.file_name).exists() for jar in locked())


# Exceptions that a failed Spark job raises; Py4JJavaError where PySpark has no class of its own.
FAILURES: Final = (PySparkException, Py4JJavaError)

RETRIED: Final = (DelayServiceError, *FAILURES)
"""Exceptions after which a job that repeats its work tries again at the next interval."""

EXIT_FINDINGS: Final = 3
EXIT_UNJUDGED: Final = 4

_TRACEBACK: Final = "Traceback (most recent call last)"
# Beginning of the line of a traceback that names the error; it is the only line without
# indentation.
_ERROR: Final = re.compile(r"[A-Za-z_][\w.]*(?:: |$)")
_CHARS_MAX: Final = 500


def reason(exc: Exception) -> str:
    """Return the text of one of ``RETRIED``: of Spark's failures the innermost cause, of Java or of
    a Python worker, as one line.
    """
    if isinstance(exc, DelayServiceError):
        return str(exc)
    text = _innermost(exc) if isinstance(exc, Py4JJavaError) else str(exc)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(exc).__name__
    if _TRACEBACK in text:
        own = [line for line in text.rpartition(_TRACEBACK)[2].splitlines() if _ERROR.match(line)]
        return (own or lines)[0][:_CHARS_MAX]
    return lines[0][:_CHARS_MAX]


def _innermost(exc: Py4JJavaError) -> str:
    cause = exc.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString())


def exit_status(findings: int, unjudged: int) -> int:
    """Return 3 if there are findings, else 4 if something was not judged, else 0."""
    if findings:
        return EXIT_FINDINGS
    return EXIT_UNJUDGED if unjudged else 0


JAVA_VERSIONS: Final = (17, 21)

SESSION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.maxConcurrentOutputFileWriters": "16",
        "spark.sql.codegen.hugeMethodLimit": "8000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "67108864",
        # Without kafka: the older reader of batches makes two more copies of each record.
        "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
        # A consumer that has read its part keeps what it fetched ahead: megabytes for each.
        "spark.kafka.consumer.cache.timeout": "5s",
        "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
        "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
    }
)

_EMBEDDED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.python.daemon.module": "connectors.spark.common.worker_daemon",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
)
_SHUFFLES: Final = "spark.sql.shuffle.partitions"
_MIB: Final = 1 << 20
_VERSION = re.compile(r'version "(\d+)')
_ASK_TIMEOUT_S: Final = 30.0
# Environment variables that spark-submit sets to the port of its Java process, and that the user
# sets to the address of a server of Spark Connect.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_REMOTE: Final = "SPARK_REMOTE"


class SparkSetupError(DelayServiceError):
    """Spark can't be started on this machine."""


def open_session(
    app: str, *, master: str | None = None, conf: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """Return a Spark session for one job; the caller stops it.

    An active session is returned as it is, whatever the arguments are. Under ``spark-submit``,
    master and packages are those of the submitter, and those of the server with Spark Connect (an
    ``sc://`` address in the environment variable ``SPARK_REMOTE``). Otherwise Spark is started in
    this process, on all cores unless ``master`` is given.

    Args:
        app: name of the application, which Spark displays.
        master: ``local[n]``, ``spark://host:port`` or another of Spark's masters; None:
            ``local[*]``.
        conf: further settings of Spark, which replace the defaults here.

    Raises:
        SparkSetupError: no Java was found that Spark can use.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    settings = dict(SESSION)
    remote = os.environ.get(_REMOTE, "")
    if _SUBMITTED not in os.environ and not remote.startswith("sc://"):
        os.environ["JAVA_HOME"] = str(java_home())
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        settings |= {**_EMBEDDED, "spark.driver.memory": _driver_memory()}
        if not are_installed():
            settings["spark.jars.packages"] = ",".join(PACKAGES)
        if not remote:
            settings["spark.master"] = master or "local[*]"
        settings["spark.sql.warehouse.dir"] = tempfile.gettempdir()
    builder = SparkSession.builder.appName(app)
    settings |= conf
    is_local = settings.get("spark.master", "").startswith("local")
    if is_local:
        # Spark asks for the address of the host's name first, which a container may not have.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if is_local and _SHUFFLES not in settings:
        # Spark's 200 are for clusters: each costs a file for each task that writes. With two for
        # each core, a small audit took 12 % longer.
        spark.conf.set(_SHUFFLES, str(4 * spark.sparkContext.defaultParallelism))
    return spark


def _driver_memory() -> str:
    # A quarter of the memory of the machine or the container, as Java itself would take.
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text("ascii").strip()).isdecimal():
        total = min(total, int(text))
    return f"{max(total // 4, 1_024 * _MIB) // _MIB}m"


def java_home() -> Path:
    """Return the first usable Java: ``JAVA_HOME``, the path, ``/usr/lib/jvm``."""
    found: list[str] = []
    for java in _javas():
        version = _java_version(java)
        if version in JAVA_VERSIONS:
            return java.resolve().parents[1]
        found.append(f"{java} is {'no Java' if version is None else f'Java {version}'}")
    wanted = " or ".join(map(str, JAVA_VERSIONS))
    raise SparkSetupError(
        f"Spark needs Java {wanted}, and none was found ({'; '.join(found) or 'no java at all'}). "
        "Install one, as with: apt-get install -y openjdk-17-jre-headless; or point JAVA_HOME at it"
    )


def _javas() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    yield from sorted(Path("/usr/lib/jvm").glob("*/bin/java"))


def _java_version(java: Path) -> int | None:
    try:
        told = subprocess.run(  # noqa: S603  # the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(told.stderr + told.stdout)
    return int(match[1]) if match else None
