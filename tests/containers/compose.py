"""The Compose file with real containers: delivery, a rolling restart, crashes."""

from __future__ import annotations

import json
import time

from tests.containers import spark
from tests.containers.cluster import NODES, Cluster
from tests.containers.engine import Engine
from tests.containers.report import Report
from tests.deployed import ROOT, services


def check(engine: Engine, report: Report, *, with_spark: bool) -> None:
    """Run the file."""
    with Cluster(engine, report, ROOT / "docker-compose.yml") as cluster:
        report.say("starting three brokers, three ZooKeepers and three nodes")
        cluster.compose("up", "-d", *NODES)
        cluster.await_healthy(*NODES)
        _one_shot(cluster)
        _roll(cluster)
        _look(cluster)
        _crash(cluster)
        _prometheus(cluster)
        if with_spark:
            spark.check(cluster)
        for node in NODES:
            _stop(cluster, node)
    ready = [v for n, v in report.figures.items() if n.endswith("start_to_ready_s")]
    report.figure("start_to_ready_max_s", max(ready))


def _one_shot(cluster: Cluster) -> None:
    done = cluster.compose("run", "--rm", "-T", "load", is_checked=False)
    cluster.report.check(
        "docker-compose run load: all of its records arrive, but those that it takes back",
        done.returncode == 0 and "750 of 750 records arrived in orders" in done.stdout,
        done.stdout + done.stderr,
    )


def _roll(cluster: Cluster) -> None:
    with cluster.load("rolling update", 3_000, 60):
        for node in NODES:
            _stop(cluster, node)
            cluster.compose("up", "-d", "--no-deps", "--force-recreate", node)
            cluster.report.figure(f"{node}_start_to_ready_s", cluster.await_ready(node))
            cluster.await_healthy(node)


def _look(cluster: Cluster) -> None:
    report = cluster.report
    for service, wanted in services().items():
        if not service.startswith(("delay-", "pair-", "kafka-", "zookeeper-", "secrets")):
            continue
        made = json.loads(cluster.engine.inspect(cluster.container(service), "json .HostConfig"))
        is_read_only = bool(wanted.facts.get("read_only"))
        report.check(
            f"{service}: root is {'read-only' if is_read_only else 'writable'}, no capability",
            made["ReadonlyRootfs"] == is_read_only and made["CapDrop"] == ["ALL"],
            made,
        )
    for node in NODES:
        words = ["exec", cluster.container(node), "/bin/sh", "-c"]
        script = "id -u; id -g; stat -c '%U %a' /etc/delayservice/*; touch /x 2>&1"
        found = cluster.engine.docker(*words, script, is_checked=False).stdout
        lines = found.splitlines()
        report.check(f"{node}: runs as 10001:10001", lines[:2] == ["10001", "10001"], found)
        report.check(
            f"{node}: three secrets, for it alone", lines[2:5] == ["delayservice 600"] * 3, found
        )
        report.check(
            f"{node}: its root can not be written", "Read-only file system" in found, found
        )
        report.check(f"{node}: the engine finds it healthy", cluster.health(node) == "healthy")
    report.check("secrets: ended with 0", cluster.exit_code("secrets") == 0)
    words = ["exec", cluster.container("delay-1"), "sh", "-c", "cat /etc/delayservice/*"]
    made = cluster.engine.docker(*words).stdout
    cluster.compose("run", "--rm", "-T", "--no-deps", "secrets")
    report.check("secrets: a second start keeps them", cluster.engine.docker(*words).stdout == made)
    report.check("secrets: has no health check", not cluster.health("secrets"))


def _crash(cluster: Cluster) -> None:
    report = cluster.report
    with cluster.load("crash of a node", 1_200, 60):
        report.figure("node_restarted_s", cluster.kill("delay-3"))
        report.figure("crashed_node_start_to_ready_s", cluster.await_ready("delay-3"))
        cluster.await_healthy("delay-3")
    with cluster.load("crash of a broker", 1_800, 60):
        report.figure("broker_restarted_s", cluster.kill("kafka-2"))
        report.figure("broker_healthy_s", cluster.await_healthy("kafka-2"))
        report.figure("node_beside_it_healthy_s", cluster.await_healthy("delay-2"))
    _beside(cluster, "a crash of its broker")
    cluster.compose("restart", "kafka-2")
    cluster.await_healthy("kafka-2")
    _beside(cluster, "a restart of its broker")
    cluster.compose("up", "-d", "--no-deps", "--force-recreate", "kafka-2")
    cluster.await_healthy("kafka-2")
    _beside(cluster, "its broker is made anew")
    with cluster.load("after the broker is back", 600, 60):
        pass


def _beside(cluster: Cluster, when: str) -> None:
    script = "import socket; socket.create_connection(('127.0.0.1', 9092), 5)"
    words = ["exec", cluster.container("delay-2"), "/opt/delayservice/bin/python", "-c"]
    found = cluster.engine.docker(*words, script, is_checked=False)
    cluster.report.check(
        f"delay-2 reaches its broker over loopback after {when}",
        found.returncode == 0,
        found.stderr,
    )
    cluster.await_healthy("delay-2")


def _prometheus(cluster: Cluster) -> None:
    cluster.compose("up", "-d", "--no-deps", "prometheus")
    cluster.await_healthy("prometheus")
    up: list[str] = []
    for _ in range(40):
        _, body = cluster.engine.get("http://127.0.0.1:9090/api/v1/targets", 20)
        active = json.loads(body)["data"]["activeTargets"]
        up = sorted(one["scrapeUrl"] for one in active if one["health"] == "up")
        if len(up) == len(NODES):
            break
        time.sleep(1)
    wanted = sorted(f"http://kafka-{n}:9464/metrics" for n in (1, 2, 3))
    cluster.report.check("Prometheus scrapes the three nodes", up == wanted, up)
    _, body = cluster.engine.get("http://127.0.0.1:9090/api/v1/rules", 20)
    groups = json.loads(body)["data"]["groups"]
    sick = [r["name"] for g in groups for r in g["rules"] if r["health"] == "err"]
    cluster.report.check(
        "Prometheus has the rules, without an error", bool(groups) and not sick, sick
    )


def _stop(cluster: Cluster, node: str) -> None:
    cluster.compose("stop", node)
    code = cluster.exit_code(node)
    cluster.report.check(f"{node} ends with 0 when stopped", code == 0, code)
