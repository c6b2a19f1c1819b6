"""``deploy/kubernetes``: the schemas of Kubernetes, and what the examples must agree with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from connectors.spark.common.session import EXIT_FINDINGS, EXIT_UNJUDGED
from delayservice.config.settings import load
from delayservice.process.worker import STOP_TIMEOUT_S
from tests.deployed import ROOT, parse, services

FOLDER = ROOT / "deploy/kubernetes"
NODES, SPARK = (
    list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))
    for name in ("delayservice.yaml", "spark.yaml")
)
CONFIG, _, BUDGET, BROKERS = NODES
POD: dict[str, Any] = BROKERS["spec"]["template"]["spec"]
BROKER, NODE = POD["containers"]
JOBS = [one["spec"]["jobTemplate"]["spec"] for one in SPARK if one["kind"] == "CronJob"]


@pytest.mark.parametrize(
    "one", [*NODES, *SPARK], ids=lambda one: f"{one['kind']} {one['metadata']['name']}"
)
def test_kubernetes_takes_it(one: dict[str, Any]) -> None:
    # Unknown names as well: a typing error would be left out without a word.
    kubernetes_validate.validate(one, "1.33", strict=True)


def test_the_node_reads_its_configuration_and_listens_where_it_is_asked(tmp_path: Path) -> None:
    text = CONFIG["data"]["delayservice.toml"]
    (tmp_path / "node.toml").write_text(text)
    names = [one["name"] for one in NODE["env"]]
    settings = load(tmp_path / "node.toml", [], dict.fromkeys(names, "1"))
    parse(NODE["args"])
    mounted = [mount["mountPath"] for mount in NODE["volumeMounts"]]
    files = {Path(value) for value in re.findall(r'_file = "(.+)"', text)}
    assert {str(settings.node.state_dir), *(str(file.parent) for file in files)} <= set(mounted)
    commands = (FOLDER / "delayservice.yaml").read_text("utf-8")
    assert len(files) == commands.count("--from-literal=") == 3
    assert all(f"--from-literal={file.name}=" in commands for file in files)
    ports = {f"0.0.0.0:{port['containerPort']}" for port in NODE["ports"]}
    assert ports == {settings.metrics.listen, settings.admin.listen}


def test_a_node_that_is_not_ready_keeps_nobody_from_its_broker() -> None:
    labels = BROKERS["spec"]["template"]["metadata"]["labels"]
    before_the_pods = [one["spec"] for one in NODES if one["kind"] == "Service"]
    assert all(service["selector"].items() <= labels.items() for service in before_the_pods)
    assert all(service["publishNotReadyAddresses"] is True for service in before_the_pods)
    assert set(BROKER["readinessProbe"]) == {"tcpSocket"}
    paths = [NODE[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")]
    assert paths == ["/healthz", "/readyz"]


def test_a_container_may_do_nothing_and_its_group_owns_the_volumes() -> None:
    guarded = NODE["securityContext"]
    assert guarded["readOnlyRootFilesystem"] is True
    assert guarded["allowPrivilegeEscalation"] is False
    assert guarded["capabilities"] == {"drop": ["ALL"]}
    assert guarded["runAsUser"] == guarded["runAsGroup"] == POD["securityContext"]["fsGroup"]
    assert f"USER {guarded['runAsUser']}:" in (ROOT / "Dockerfile").read_text("utf-8")
    for pod in (POD, *(job["template"]["spec"] for job in JOBS)):
        assert pod["securityContext"] == POD["securityContext"]
        assert pod["containers"][-1]["securityContext"] == guarded
        secret = next(one for one in pod["volumes"] if one["name"] == "secrets")["secret"]
        assert secret["defaultMode"] == 0o440


def test_a_stop_is_given_the_time_that_broker_and_node_take() -> None:
    assert POD["terminationGracePeriodSeconds"] > STOP_TIMEOUT_S + 5
    assert BUDGET["spec"]["maxUnavailable"] == 1


def test_its_brokers_and_images_are_those_of_the_compose_file() -> None:
    composed = services()
    assert BROKER["image"] == composed["kafka-1"].facts["image"]
    assert NODE["image"] == composed["delay-1"].facts["image"]
    own = {one["name"]: one.get("value") for one in BROKER["env"]}
    words = ("REPLICATION", "MIN_", "AUTO_CREATE")
    same = {n: v for n, v in own.items() if any(word in n for word in words)}
    assert len(same) == 6
    assert same.items() <= composed["kafka-1"].environment.items()


@pytest.mark.parametrize("job", JOBS, ids=["audit", "reconcile"])
def test_a_job_ends_and_is_not_done_again_because_it_found_something(job: dict[str, Any]) -> None:
    (container,) = job["template"]["spec"]["containers"]
    parse(container["args"])
    assert container["args"][:2] == ["spark", container["name"]]
    assert "--publish" in container["args"]
    assert "--follow" not in container["args"]
    assert container["image"] == services()[container["name"]].facts["image"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [EXIT_FINDINGS, EXIT_UNJUDGED]
    # It is over before the next one begins, which replaces its results.
    assert job["activeDeadlineSeconds"] < 3_600
    (heap,) = (w.rpartition("=")[2] for w in container["args"] if "spark.driver.memory" in w)
    limit = container["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Gi")) >= int(heap.removesuffix("g")) + 2
