"""Resolve Kafka and ZooKeeper anew and write ``jars.lock``: ``make lock-jars``.

A maintainer's tool, used when the versions below change; starting a cluster never resolves.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from jgo.maven import Artifact, MavenContext

from delayservice.dev.jars import Jar, sha256_of

LOCK_PATH = Path(__file__).with_name("jars.lock")

WITH_DEPENDENCIES = ("org.apache.kafka:kafka_2.13:4.3.0",)
"""Resolved together with everything they need at run time."""

ALONE = (
    # The server as shipped: its POM drags in build-time annotations and native TLS for five
    # platforms, so what it loads is named here instead.
    "org.apache.zookeeper:zookeeper:3.9.5",
    "org.apache.zookeeper:zookeeper-jute:3.9.5",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "commons-io:commons-io:2.17.0",
    "io.netty:netty-buffer:4.1.130.Final",
    "io.netty:netty-codec:4.1.130.Final",
    "io.netty:netty-common:4.1.130.Final",
    "io.netty:netty-handler:4.1.130.Final",
    "io.netty:netty-resolver:4.1.130.Final",
    "io.netty:netty-transport:4.1.130.Final",
    # One logging backend for both servers, on the slf4j generation that Kafka brings.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)

_HEADER = """\
# Every jar of the embedded cluster: coordinate, SHA-256, size in bytes.
# Written by `make lock-jars`; the roots are in lock_jars.py.
"""


def _artifacts(context: MavenContext) -> Iterator[Artifact]:
    roots = [context.create_dependency(coordinate) for coordinate in WITH_DEPENDENCIES]
    inputs, transitive = context.resolver.resolve(roots)
    yield from (dependency.artifact for dependency in (*inputs, *transitive))
    yield from (context.create_dependency(coordinate).artifact for coordinate in ALONE)


def resolve() -> list[Jar]:
    """Resolve the roots in a scratch folder and return the jars in coordinate order."""
    with tempfile.TemporaryDirectory() as scratch:
        context = MavenContext(repo_cache=Path(scratch), timeout=60)
        jars = []
        for artifact in _artifacts(context):
            path = Path(artifact.resolve())
            coordinate = f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"
            jars.append(Jar(coordinate, sha256_of(path), path.stat().st_size))
    return sorted(jars, key=lambda jar: jar.coordinate)


def main() -> None:
    """Write the lock file."""
    lines = (f"{jar.coordinate} {jar.sha256} {jar.bytes}\n" for jar in resolve())
    LOCK_PATH.write_text(_HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
