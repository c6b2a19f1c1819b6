"""Opens Spark sessions: in this process, or in the Java process of ``spark-submit``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark.sql import SparkSession

from connectors.spark.common.connector import PACKAGES, are_installed
from delayservice.base.errors import DelayServiceError

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
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.python.daemon.module": "connectors.spark.common.worker_daemon",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
)
_VERSION = re.compile(r'version "(\d+)')
_ASK_TIMEOUT_S: Final = 30.0
# Environment variable that spark-submit sets to the port of its Java process.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"


class SparkSetupError(DelayServiceError):
    """Spark can't be started on this machine."""


def open_session(
    app: str, *, master: str | None = None, conf: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """Return a Spark session for one job; the caller stops it.

    An active session is returned as it is, whatever the arguments are. Under ``spark-submit``,
    master and packages are those of the submitter. Otherwise Spark is started in this process, on
    all cores unless ``master`` is given.

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
    if _SUBMITTED not in os.environ:
        os.environ["JAVA_HOME"] = str(java_home())
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        settings |= _EMBEDDED
        if not are_installed():
            settings["spark.jars.packages"] = ",".join(PACKAGES)
        settings["spark.master"] = master or "local[*]"
        settings["spark.sql.warehouse.dir"] = tempfile.gettempdir()
    builder = SparkSession.builder.appName(app)
    settings |= conf
    if settings.get("spark.master", "").startswith("local"):
        # Spark asks for the address of the host's name first, which a container may not have.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


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
