"""``deploy/kubernetes``: the schemas of Kubernetes, and what the example must agree with."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from connectors.spark.common.session import EXIT_FINDINGS, EXIT_UNJUDGED
from delayservice.config.settings import load
from delayservice.process.worker import STOP_TIMEOUT_S
from tests.deployed import ROOT, parse, services

FILE = ROOT / "deploy/kubernetes/delayservice.yaml"
OBJECTS: dict[str, dict[str, Any]] = {
    one["kind"]: one for one in yaml.safe_load_all(FILE.read_text("utf-8"))
}
SPARK_FILE = ROOT / "deploy/kubernetes/spark.yaml"
SPARK: list[dict[str, Any]] = list(yaml.safe_load_all(SPARK_FILE.read_text("utf-8")))
JOBS = [one for one in SPARK if one["kind"] == "CronJob"]
every_job = pytest.mark.parametrize("job", JOBS, ids=lambda one: str(one["metadata"]["name"]))
POD: dict[str, Any] = OBJECTS["StatefulSet"]["spec"]["template"]["spec"]
BROKER, NODE = POD["containers"]


def configured(tmp_path: Path) -> Any:
    config = tmp_path / "delayservice.toml"
    config.write_text(OBJECTS["ConfigMap"]["data"]["delayservice.toml"])
    return load(config, [], {})


@pytest.mark.parametrize("kind", OBJECTS)
def test_kubernetes_takes_it(kind: str) -> None:
    # The names that nobody knows as well: a typing error would be left out without a word.
    kubernetes_validate.validate(OBJECTS[kind], "1.33", strict=True)


def test_its_command_and_its_configuration_are_the_services(tmp_path: Path) -> None:
    parse(NODE["args"])
    settings = configured(tmp_path)
    mounted = [mount["mountPath"] for mount in NODE["volumeMounts"]]
    assert str(settings.node.state_dir) in mounted
    secrets = tomllib.loads(OBJECTS["ConfigMap"]["data"]["delayservice.toml"])
    files = [v for section in secrets.values() for n, v in section.items() if n.endswith("_file")]
    assert len(files) == 3
    assert all(str(Path(file).parent) in mounted for file in files)
    given = FILE.read_text("utf-8").count("--from-literal=")
    assert given == len(files)
    assert all(f"--from-literal={Path(file).name}=" in FILE.read_text("utf-8") for file in files)


def test_every_variable_of_the_node_is_a_setting() -> None:
    names = [one["name"] for one in NODE["env"]]
    assert load(None, [], dict.fromkeys(names, "1")).node.broker_id == 1


def test_probes_and_ports_are_those_that_it_listens_on(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    ports = {port["name"]: port["containerPort"] for port in NODE["ports"]}
    listens = {"metrics": settings.metrics.listen, "admin": settings.admin.listen}
    assert {name: f"0.0.0.0:{port}" for name, port in ports.items()} == listens
    probes = {
        kind: NODE[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
    }
    assert [probe["path"] for probe in probes.values()] == ["/healthz", "/healthz", "/readyz"]
    assert all(probe["port"] == "admin" for probe in probes.values())


def test_a_node_that_is_not_ready_keeps_nobody_from_its_broker() -> None:
    labels = OBJECTS["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    everything = list(yaml.safe_load_all(FILE.read_text("utf-8")))
    before_the_pods = [
        one["spec"]
        for one in everything
        if one["kind"] == "Service" and one["spec"]["selector"].items() <= labels.items()
    ]
    assert before_the_pods
    assert all(service["publishNotReadyAddresses"] is True for service in before_the_pods)
    # Its own readiness is the broker's alone, and only a node that hangs is started anew.
    assert set(BROKER["readinessProbe"]) == {"tcpSocket"}
    assert NODE["livenessProbe"]["httpGet"]["path"] != NODE["readinessProbe"]["httpGet"]["path"]


def test_the_node_may_do_nothing_and_its_group_owns_the_volumes() -> None:
    guarded = NODE["securityContext"]
    assert guarded["readOnlyRootFilesystem"] is True
    assert guarded["allowPrivilegeEscalation"] is False
    assert guarded["capabilities"] == {"drop": ["ALL"]}
    assert guarded["runAsUser"] == guarded["runAsGroup"] == POD["securityContext"]["fsGroup"]
    assert f"USER {guarded['runAsUser']}:" in (ROOT / "Dockerfile").read_text("utf-8")
    secret = next(one for one in POD["volumes"] if one["name"] == "secrets")["secret"]
    assert secret["defaultMode"] == 0o440


def test_every_mount_has_a_volume() -> None:
    spec = OBJECTS["StatefulSet"]["spec"]
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    volumes = {one["name"] for one in POD["volumes"]} | claims
    mounts = {mount["name"] for one in POD["containers"] for mount in one["volumeMounts"]}
    assert mounts == volumes


def test_a_stop_is_given_the_time_that_broker_and_node_take() -> None:
    assert POD["terminationGracePeriodSeconds"] > STOP_TIMEOUT_S + 5
    assert OBJECTS["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    labels = OBJECTS["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        OBJECTS["StatefulSet"]["spec"]["selector"]["matchLabels"],
        OBJECTS["Service"]["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()


def test_its_brokers_and_images_are_those_of_the_compose_file() -> None:
    composed = services()
    assert BROKER["image"] == composed["kafka-1"].facts["image"]
    assert NODE["image"] == composed["delay-1"].facts["image"]
    own = {one["name"]: one.get("value") for one in BROKER["env"]}
    same = [
        name for name in own if "REPLICATION" in name or "MIN_" in name or "AUTO_CREATE" in name
    ]
    assert len(same) == 6
    assert {n: own[n] for n in same} == {n: composed["kafka-1"].environment[n] for n in same}


# --- the jobs of Spark ---------------------------------------------------------------------------


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    return dict(job["spec"]["jobTemplate"]["spec"]["template"]["spec"])


@pytest.mark.parametrize("one", SPARK, ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_kubernetes_takes_the_jobs(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, "1.33", strict=True)


def test_there_is_a_job_for_each_and_they_take_turns() -> None:
    assert [job["metadata"]["name"] for job in JOBS] == [
        "delayservice-audit",
        "delayservice-reconcile",
    ]
    assert len({job["spec"]["schedule"] for job in JOBS}) == 2


@every_job
def test_the_command_of_a_job_is_the_services(job: dict[str, Any]) -> None:
    (container,) = pod_of(job)["containers"]
    assert container["args"][:2] == ["spark", container["name"]]
    assert job["metadata"]["name"] == f"delayservice-{container['name']}"
    parse(container["args"])
    assert "--publish" in container["args"]
    # A run ends by itself; one that follows would keep the next one waiting for ever.
    assert "--follow" not in container["args"]
    image = services()[container["name"]].facts["image"]
    assert container["image"] == image


@every_job
def test_a_job_is_not_done_again_because_it_found_something(job: dict[str, Any]) -> None:
    spec = job["spec"]["jobTemplate"]["spec"]
    (container,) = pod_of(job)["containers"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert rule["onExitCodes"]["values"] == [EXIT_FINDINGS, EXIT_UNJUDGED]
    assert pod_of(job)["restartPolicy"] == "Never"
    # It is over before the next one begins, which replaces its results.
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert spec["activeDeadlineSeconds"] < 3_600


@every_job
def test_a_job_may_do_nothing_and_has_what_it_mounts(job: dict[str, Any], tmp_path: Path) -> None:
    pod = pod_of(job)
    (container,) = pod["containers"]
    assert container["securityContext"] == NODE["securityContext"]
    assert pod["securityContext"] == POD["securityContext"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert mounts.keys() == volumes.keys()
    claims = [one["metadata"]["name"] for one in SPARK if one["kind"] == "PersistentVolumeClaim"]
    assert volumes["results"]["persistentVolumeClaim"]["claimName"] in claims
    (out,) = (w.partition("=")[2] for w in container["args"] if w.startswith("--out="))
    assert out.startswith(mounts["results"] + "/")
    # The configuration is the nodes' own; of their secrets it has the one that signs copies.
    assert volumes["config"]["configMap"]["name"] == OBJECTS["ConfigMap"]["metadata"]["name"]
    secret = volumes["secrets"]["secret"]
    assert [item["key"] for item in secret["items"]] == ["cluster_secret"]
    assert secret["defaultMode"] == 0o440
    file = configured(tmp_path).node.cluster_secret_file
    assert str(file) == f"{mounts['secrets']}/{secret['items'][0]['path']}"


@every_job
def test_a_job_has_more_memory_than_its_heap(job: dict[str, Any]) -> None:
    (container,) = pod_of(job)["containers"]
    (heap,) = (w.rpartition("=")[2] for w in container["args"] if "spark.driver.memory" in w)
    limit = container["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Gi")) >= int(heap.removesuffix("g")) + 2
