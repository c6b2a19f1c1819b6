"""Resolves the dependencies of Kafka, ZooKeeper and RocketMQ anew: ``make lock-jars``.

Used when the versions below change; starting a cluster never resolves.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from jgo.maven import Artifact, MavenContext

from delay_devtools import bench
from delay_devtools.jars import KAFKA_LOCKS, Jar, sha256_of

# Full version of Kafka by the short version that names its lock. A lock contains all of its
# run-time dependencies.
KAFKAS = {"4.3": "4.3.0", "3.9": "3.9.2"}

ALONE = (
    # ZooKeeper as shipped: its POM drags in build-time annotations and native TLS for five
    # platforms, so what it loads is named here instead. Kafka 3.9 asks for an older one.
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
    # One logging backend for all servers, on the slf4j generation that Kafka brings.
    "org.apache.logging.log4j:log4j-api:2.25.4",
    "org.apache.logging.log4j:log4j-core:2.25.4",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
# Artifacts that a lock contains in addition to ALONE, by version of Kafka. Of the groups of all
# these, a lock contains no other artifact or version.
ALONE_FOR = {
    # Kafka 3.9 still calls log4j 1.
    "3.9": ("org.apache.logging.log4j:log4j-1.2-api:2.25.4",),
}

# Maven artifacts that, with their dependencies, are the jars of delayservice dev bench peers.
ROCKETMQ = tuple(f"org.apache.rocketmq:rocketmq-{part}:5.4.0" for part in ("broker", "namesrv"))
ROCKETMQ_LOCK = Path(bench.__file__).with_name("peers") / "rocketmq.lock"

_HEADER = """\
# Every jar of a server and its clients: coordinate, SHA-256, size in bytes.
# Written by `make lock-jars`; the roots are in lock_jars.py.
"""


def _artifacts(context: MavenContext, kafka: str) -> Iterator[Artifact]:
    alone = (*ALONE, *ALONE_FOR.get(kafka, ()))
    groups = {coordinate.split(":", 1)[0] for coordinate in alone}
    root = context.create_dependency(f"org.apache.kafka:kafka_2.13:{KAFKAS[kafka]}")
    inputs, transitive = context.resolver.resolve([root])
    found = (dependency.artifact for dependency in (*inputs, *transitive))
    yield from (artifact for artifact in found if artifact.groupId not in groups)
    yield from (context.create_dependency(coordinate).artifact for coordinate in alone)


def _rocketmq(context: MavenContext) -> Iterator[Artifact]:
    roots = [context.create_dependency(root) for root in ROCKETMQ]
    inputs, transitive = context.resolver.resolve(roots)
    for artifact in (dependency.artifact for dependency in (*inputs, *transitive)):
        if not artifact.classifier:
            # A POM may ask for a range of a single version, such as [1.53.0].
            version = artifact.version.strip("[]")
            coordinate = f"{artifact.groupId}:{artifact.artifactId}:{version}"
            yield context.create_dependency(coordinate).artifact


def resolve(find: Callable[[MavenContext], Iterator[Artifact]]) -> list[Jar]:
    with tempfile.TemporaryDirectory() as scratch:
        context = MavenContext(repo_cache=Path(scratch), timeout=60)
        jars = set()
        for artifact in find(context):
            path = Path(artifact.resolve())
            coordinate = f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"
            jars.add(Jar(coordinate, sha256_of(path), path.stat().st_size))
    return sorted(jars, key=lambda jar: jar.coordinate)


def _write(path: Path, jars: Iterable[Jar]) -> None:
    lines = (f"{jar.coordinate} {jar.sha256} {jar.bytes}\n" for jar in jars)
    path.write_text(_HEADER + "".join(lines), encoding="utf-8")


def main() -> None:
    for kafka, name in KAFKA_LOCKS.items():
        find = partial(_artifacts, kafka=kafka)
        _write(Path(__file__).with_name(name), resolve(find))
    _write(ROCKETMQ_LOCK, resolve(_rocketmq))


if __name__ == "__main__":
    main()
