"""The small Compose file: one broker, one node, page and metrics."""

from __future__ import annotations

from tests.containers.cluster import Cluster
from tests.containers.engine import Engine
from tests.containers.report import Report
from tests.deployed import ROOT

NODE = "delay"


def check(engine: Engine, report: Report) -> None:
    """Run it: delivery, page, metrics, a restart of the broker, a stop."""
    with Cluster(engine, report, ROOT / "deploy/docker-compose.small.yml", (9464,)) as cluster:
        report.say("starting one broker and one node")
        cluster.compose("up", "-d", NODE)
        report.figure("small_healthy_s", cluster.await_healthy("kafka", NODE))
        with cluster.load("small file", 300, 100):
            pass
        _, metrics = engine.get("http://127.0.0.1:9464/metrics", 10)
        report.check("small file: metrics are published", "delay_owned" in metrics, metrics[:300])
        token = ["exec", cluster.container(NODE), "cat", "/var/lib/delayservice/admin_token"]
        secret = engine.docker(*token).stdout.strip()
        _, page = engine.get("http://127.0.0.1:9465/", 10, secret)
        report.check("small file: the page is published", "<html" in page.lower(), page[:300])
        cluster.compose("restart", "kafka")
        cluster.await_healthy("kafka", NODE)
        with cluster.load("small file after a restart of the broker", 300, 100):
            pass
        cluster.compose("stop", NODE)
        code = cluster.exit_code(NODE)
        report.check("small file: the node ends with 0 when stopped", code == 0, code)
