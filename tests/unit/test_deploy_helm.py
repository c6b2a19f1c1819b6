"""``deploy/helm``: what the chart makes of its values, held against what was reviewed.

``REWRITE_RENDERED=1`` writes the files of ``tests/unit/rendered`` anew; a reviewer reads the diff.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from delayservice.config.settings import Settings, load
from delayservice.process.worker import STOP_TIMEOUT_S
from tests.deployed import ROOT, parse, services
from tests.docs.pages import bare, commands
from tests.needs import program

pytestmark = pytest.mark.long  # `make long` builds Helm

CHART = "deploy/helm/delayservice"
STRIMZI = "deploy/helm/strimzi.values.yaml"
REVIEWED = Path(__file__).with_name("rendered")
KUBERNETES = "1.33"
"""A Helm that Go has built takes an old version for granted."""
VALUES = (
    "--set=kafka.bootstrap=my-cluster-kafka-bootstrap:9092,existingSecret=delayservice",
    "--set=targets={orders*,payments}",
)
CASES = {
    "certificate": (
        *VALUES,
        "--set=zookeeper.create=true,kafka.clientCertificate.secret=user,kafka.ca.secret=ca",
        "--set=networkPolicy.adminFrom[0].namespaceSelector.matchLabels.team=ops",
    ),
    "strimzi": (
        f"--values={STRIMZI}",
        r"--set=zookeeper.hosts=zk-1:2181\,zk-2:2182,zookeeper.create=false",
        "--set=networkPolicy.extraPorts={9094}",
    ),
    "single": (*VALUES, "--set=replicas=1,copies=1,zookeeper.auth=none"),
}
CONFIG = '[kafka]\nbootstrap = "unused:1"\n\n[log]\nlevel = "debug"\n'
"""A file of the user's own: the values are stronger."""

Object = dict[str, Any]


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    command = [program("helm", "helm-tools"), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def template(*words: str, release: str = "delayservice") -> subprocess.CompletedProcess[str]:
    fixed = ("--kube-version", KUBERNETES, "--namespace", "kafka")
    return helm("template", release, CHART, *fixed, *words)


def read(done: subprocess.CompletedProcess[str]) -> list[Object]:
    """Return the objects of a rendered chart, each of which Kubernetes takes."""
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    for one in objects:
        if one["kind"] not in {"ServiceMonitor", "PrometheusRule"}:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    return objects


def named(objects: list[Object], kind: str, name: str = "delayservice") -> Object:
    (one,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return one


def pod_of(objects: list[Object]) -> Object:
    return dict(named(objects, "StatefulSet")["spec"]["template"]["spec"])


def settings_of(objects: list[Object], tmp_path: Path) -> Settings:
    """Return what a node makes of the chart's configuration and environment."""
    config = tmp_path / "delayservice.toml"
    config.write_text(named(objects, "ConfigMap")["data"]["delayservice.toml"], "utf-8")
    (node,) = pod_of(objects)["containers"]
    parse(node["args"])
    given = {one["name"]: one.get("value", "from-elsewhere") for one in node["env"]}
    for name, value in given.items():
        if name.endswith("_FILE"):  # the service reads it at once
            file = tmp_path / Path(value).name
            file.write_text("0123456789abcdef0123456789", "utf-8")
            given[name] = str(file)
    return load(config, [], given)


@pytest.mark.parametrize("case", CASES)
def test_the_chart_renders_what_was_reviewed_and_a_node_takes_it(case: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(CONFIG, "utf-8")
    done = template(*CASES[case], f"--set-file=config={tmp_path / 'own.toml'}")
    objects = read(done)
    file = REVIEWED / f"{case}.yaml"
    if os.environ.get("REWRITE_RENDERED"):
        file.write_text(done.stdout, "utf-8")
    assert objects == [one for one in yaml.safe_load_all(file.read_text("utf-8")) if one]
    settings = settings_of(objects, tmp_path)
    assert settings.log.level == "debug"
    assert settings.kafka.bootstrap.startswith("my-cluster-kafka-bootstrap:")


def test_the_command_of_the_page_installs_a_cluster(tmp_path: Path) -> None:
    (command,) = (bare(o.text) for o in commands("docs/kubernetes.md") if o.text[:4] == "helm")
    verb, *words = shlex.split(command)[1:]
    assert verb == "install"
    objects = read(helm("template", "--kube-version", KUBERNETES, *words))
    settings = settings_of(objects, tmp_path)
    assert settings.placement.replicas == 3
    assert settings.delivery.id_partitions == settings.topics.partitions
    pod, image = pod_of(objects), services()["delay-1"].facts["image"]
    assert pod["containers"][0]["image"] == f"registry.example.com/{image}"
    assert pod["terminationGracePeriodSeconds"] > STOP_TIMEOUT_S + 5
    ensemble = named(objects, "StatefulSet", "delayservice-zookeeper")["spec"]
    assert len(settings.zookeeper.hosts.split(",")) == ensemble["replicas"]
    (server,) = ensemble["template"]["spec"]["containers"]
    assert server["image"] == services()["zookeeper-1"].facts["image"]
    sidecar = yaml.safe_load_all((ROOT / "deploy/kubernetes/delayservice.yaml").read_text("utf-8"))
    theirs = named(list(sidecar), "StatefulSet", "kafka")["spec"]["template"]["spec"]
    for key in ("securityContext", "startupProbe", "livenessProbe", "readinessProbe"):
        assert pod["containers"][0][key] == theirs["containers"][1][key]
    assert pod["securityContext"] == theirs["securityContext"]


def test_helm_finds_nothing_wrong() -> None:
    done = helm("lint", "--strict", CHART, f"--values={STRIMZI}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("existingSecret=", "existingSecret: name a secret"),
        ("kafka.bootstrap=", "kafka.bootstrap: name the brokers"),
        ("kafka.bootstrap=broker", "/kafka/bootstrap': 'broker' does not match"),
        ("targets=null", "targets: list the topics"),
        ("copies=4", "copies: not more than replicas"),
        ("zookeeper.hosts=zk:2181", "zookeeper: set hosts or create, not both"),
        ("zookeeper.create=false", "zookeeper.hosts: name an ensemble"),
        ("kafka.sasl.username=me", "kafka.sasl.secret: name the secret"),
        ("replica=3", "replica"),
    ],
)
def test_values_that_contradict_each_other_are_refused(wrong: str, told: str) -> None:
    done = template(*VALUES, "--set=zookeeper.create=true", f"--set={wrong}")
    assert done.returncode != 0
    assert told in done.stderr


def test_the_operator_of_prometheus_is_given_targets_and_every_alert() -> None:
    sets = "enabled=true", "job=delay-eu", "labels.release=prom", "runbooks=https://docs.example/"
    words = [f"--set=monitoring.{one}" for one in sets]
    objects = read(template(*VALUES, "--set=zookeeper.create=true", *words))
    monitor, rule = named(objects, "ServiceMonitor"), named(objects, "PrometheusRule")
    assert {one["metadata"]["labels"]["release"] for one in (monitor, rule)} == {"prom"}
    service = named(objects, "Service")
    labels = service["metadata"]["labels"]
    assert labels[monitor["spec"]["jobLabel"]] == "delay-eu"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
    ours = yaml.safe_load((ROOT / "deploy/prometheus/delayservice.rules.yml").read_text("utf-8"))
    alerts = [one for group in rule["spec"]["groups"] for one in group["rules"]]
    assert len(alerts) == sum(len(group["rules"]) for group in ours["groups"])
    (down,) = (one for one in alerts if one.get("alert") == "DelayNodeDown")
    assert down["expr"] == 'up{job="delay-eu"} == 0'
    url = "https://docs.example/operations.md#delaynodedown"
    assert down["annotations"]["runbook_url"] == url


def test_two_releases_share_no_name_and_no_label() -> None:
    first, second = (read(template(*CASES["single"], release=name)) for name in ("one", "two"))
    names = {(one["kind"], one["metadata"]["name"]) for one in first}
    assert not names & {(one["kind"], one["metadata"]["name"]) for one in second}
    pod = named(second, "StatefulSet", "two-delayservice")["spec"]["template"]["metadata"]["labels"]
    selector = named(first, "Service", "one-delayservice")["spec"]["selector"]
    assert not selector.items() <= pod.items()
