"""``deploy/helm``: what the chart makes of its values, read by Kubernetes' schemas and a node."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from delayservice.config.settings import Settings, load
from delayservice.process.worker import STOP_TIMEOUT_S
from tests.deployed import ROOT, parse, services
from tests.docs.pages import bare, commands

pytestmark = pytest.mark.long  # `make long` builds Helm

CHART = ROOT / "deploy/helm/delayservice"
VALUES = (
    "kafka.bootstrap=my-cluster-kafka-bootstrap:9092",
    "existingSecret=delayservice",
    "targets={orders*,payments}",
    "zookeeper.create=true",
)
KUBERNETES = "1.33"
"""A Helm that Go has built takes an old version for granted."""
PAGE = "docs/kubernetes.md"
RENDER = ("template", "--kube-version", KUBERNETES)
CUSTOM_KINDS = {"ServiceMonitor", "PrometheusRule"}
SECRET = {"cluster_secret", "admin_token", "zookeeper_password"}

Object = dict[str, Any]


def helm() -> str:
    """Helm's path, from ``make helm-tools`` or the machine."""
    beside = Path(sys.executable).with_name("helm")
    found = str(beside) if beside.exists() else shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed: type `make helm-tools`")
    return found


def template(
    *sets: str, more: Sequence[str] = (), release: str = "delayservice"
) -> subprocess.CompletedProcess[str]:
    words = [helm(), *RENDER, release, str(CHART), "--namespace", "kafka", *more]
    for one in sets:
        words += ["--set", one]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def rendered(*sets: str, more: Sequence[str] = (), release: str = "delayservice") -> list[Object]:
    done = template(*sets, more=more, release=release)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def named(objects: Sequence[Object], kind: str, name: str = "delayservice") -> Object:
    (one,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return one


def node_of(objects: Sequence[Object], name: str = "delayservice") -> tuple[Object, Object]:
    """The pod of the nodes, and its container."""
    pod = named(objects, "StatefulSet", name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def settings_of(objects: Sequence[Object], tmp_path: Path) -> Settings:
    """What a node makes of the chart's configuration and environment."""
    config = tmp_path / "delayservice.toml"
    config.write_text(named(objects, "ConfigMap")["data"]["delayservice.toml"], "utf-8")
    _, node = node_of(objects)
    given = {one["name"]: one.get("value", "from-elsewhere") for one in node["env"]}
    for name, value in given.items():
        if name.endswith("_FILE"):  # the service reads it at once
            file = tmp_path / Path(value).name
            file.write_text("0123456789abcdef0123456789", "utf-8")
            given[name] = str(file)
    return load(config, [], given)


def check(objects: Sequence[Object]) -> None:
    """Kubernetes takes all of it, and what belongs together fits."""
    for one in objects:
        if one["kind"] not in CUSTOM_KINDS:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]
        for one in objects
        if one["kind"] == "StatefulSet"
    }
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] == "StatefulSet":
            claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
            pod = spec["template"]["spec"]
            volumes = {volume["name"] for volume in pod.get("volumes", [])} | claims
            mounts = {m["name"] for c in pod["containers"] for m in c["volumeMounts"]}
            assert mounts == volumes
            assert named(objects, "Service", spec["serviceName"])["spec"]["clusterIP"] == "None"
            assert pod["securityContext"]["runAsNonRoot"] is True
        selectors = {
            "StatefulSet": lambda spec: spec["selector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
            "Service": lambda spec: spec["selector"],
        }
        if one["kind"] in selectors:
            selector = selectors[one["kind"]](spec)
            chosen = [
                n for n, p in pods.items() if selector.items() <= p["metadata"]["labels"].items()
            ]
            assert chosen == [one["metadata"]["name"]]


@pytest.fixture(scope="module")
def elsewhere() -> list[Object]:
    return rendered(*VALUES)


def test_kubernetes_takes_the_manifest(elsewhere: list[Object]) -> None:
    assert len(elsewhere) == 9
    check(elsewhere)


def test_make_writes_the_manifest(elsewhere: list[Object]) -> None:
    words = ["make", "--silent", "manifest"]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    written = (ROOT / "deploy/kubernetes/elsewhere.yaml").read_text("utf-8")
    assert [one for one in yaml.safe_load_all(written) if one] == elsewhere


def test_its_settings_are_those_of_a_cluster(elsewhere: list[Object], tmp_path: Path) -> None:
    settings = settings_of(elsewhere, tmp_path)
    pod, node = node_of(elsewhere)
    parse(node["args"])
    mounted = {mount["mountPath"] for mount in node["volumeMounts"]}
    assert str(settings.node.state_dir) in mounted
    assert settings.placement.replicas == 3
    assert settings.delivery.id_partitions == settings.topics.partitions
    assert settings.targets["default"].allow == ("orders*", "payments")
    hosts = settings.zookeeper.hosts.split(",")
    ensemble = named(elsewhere, "StatefulSet", "delayservice-zookeeper")["spec"]
    assert len(hosts) == ensemble["replicas"] == 3
    files = {one["value"] for one in node["env"] if one["name"].endswith("_FILE")}
    assert files == {f"/run/secrets/delayservice/{key}" for key in SECRET}
    ports = {f"0.0.0.0:{port['containerPort']}" for port in node["ports"]}
    assert ports == {settings.metrics.listen, settings.admin.listen}
    assert pod["terminationGracePeriodSeconds"] > STOP_TIMEOUT_S + 5


def test_its_images_are_those_of_the_compose_file_and_its_guard_that_of_the_sidecar(
    elsewhere: list[Object],
) -> None:
    pod, node = node_of(elsewhere)
    assert node["image"] == services()["delay-1"].facts["image"]
    (ensemble,) = node_of(elsewhere, "delayservice-zookeeper")[0]["containers"]
    assert ensemble["image"] == services()["zookeeper-1"].facts["image"]
    sidecar = yaml.safe_load_all((ROOT / "deploy/kubernetes/delayservice.yaml").read_text("utf-8"))
    theirs = named(list(sidecar), "StatefulSet", "kafka")["spec"]["template"]["spec"]
    (beside,) = (one for one in theirs["containers"] if one["name"] == "delayservice")
    for key in ("securityContext", "startupProbe", "livenessProbe", "readinessProbe"):
        assert node[key] == beside[key]
    assert pod["securityContext"] == theirs["securityContext"]


@pytest.fixture
def strimzi() -> list[str]:
    """Options with the values that the page names for Strimzi."""
    return ["--values", str(ROOT / "deploy" / "helm" / "strimzi.values.yaml")]


def test_the_command_of_the_page_installs_it() -> None:
    (command,) = (bare(one.text) for one in commands(PAGE) if one.text.startswith("helm"))
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("helm", "install")
    done = subprocess.run(
        [helm(), *RENDER, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    check(objects)
    assert node_of(objects)[1]["image"] == "registry.example.com/delayservice:0.1.0"


def test_helm_finds_nothing_wrong(strimzi: list[str]) -> None:
    words = [helm(), "lint", "--strict", str(CHART), *strimzi]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cluster_of_strimzi_is_reached_with_its_own_secrets(
    strimzi: list[str], tmp_path: Path
) -> None:
    hosts = "zookeeper.hosts=zk-1:2181\\,zk-2:2182"
    check(rendered(more=strimzi))
    objects = rendered(
        hosts, "zookeeper.create=false", "networkPolicy.extraPorts={9094}", more=strimzi
    )
    check(objects)
    settings = settings_of(objects, tmp_path)
    client = settings.kafka.client_config("producer")
    assert client["security.protocol"] == "SASL_SSL"
    assert client["sasl.username"] == "delayservice"
    assert client["ssl.ca.location"] == "/run/secrets/kafka-ca/ca.crt"
    assert settings.zookeeper.hosts == "zk-1:2181,zk-2:2182"
    egress = named(objects, "NetworkPolicy")["spec"]["egress"]
    assert [port["port"] for port in egress[1]["ports"]] == [9093, 2181, 2182, 9094]
    kinds = ["ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet"]
    assert sorted(one["kind"] for one in objects) == kinds


def test_a_client_certificate_is_mounted_and_named(tmp_path: Path) -> None:
    objects = rendered(*VALUES, "kafka.clientCertificate.secret=user", "kafka.ca.secret=ca")
    check(objects)
    client = settings_of(objects, tmp_path).kafka.client_config("producer")
    assert client["security.protocol"] == "SSL"
    mounts = {m["mountPath"] for m in node_of(objects)[1]["volumeMounts"]}
    for name in ("ssl.certificate.location", "ssl.key.location", "ssl.ca.location"):
        assert str(Path(str(client[name])).parent) in mounts


def test_one_node_needs_no_ensemble_and_several_do(tmp_path: Path) -> None:
    few = [one for one in VALUES if not one.startswith("zookeeper")]
    objects = rendered(*few, "replicas=1", "copies=1", "zookeeper.auth=none")
    check(objects)
    assert settings_of(objects, tmp_path).zookeeper.hosts == ""
    assert "PodDisruptionBudget" not in {one["kind"] for one in objects}
    assert "zookeeper.hosts: name an ensemble" in template(*few).stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("existingSecret=", "existingSecret: name a secret"),
        ("kafka.bootstrap=", "kafka.bootstrap: name the brokers"),
        ("kafka.bootstrap=broker", "/kafka/bootstrap': 'broker' does not match"),
        ("targets=null", "targets: list the topics"),
        ("copies=4", "copies: not more than replicas"),
        ("zookeeper.hosts=zk:2181", "zookeeper: set hosts or create, not both"),
        ("kafka.sasl.username=me", "kafka.sasl.secret: name the secret"),
        ("replica=3", "replica"),
    ],
)
def test_values_that_contradict_each_other_are_refused(wrong: str, said: str) -> None:
    done = template(*VALUES, wrong)
    assert done.returncode != 0
    assert said in done.stderr


def test_a_file_of_ones_own_is_the_configuration_and_values_are_stronger(tmp_path: Path) -> None:
    config = tmp_path / "own.toml"
    config.write_text('[kafka]\nbootstrap = "unused:1"\n\n[log]\nlevel = "debug"\n', "utf-8")
    objects = rendered(*VALUES, more=["--set-file", f"config={config}"])
    settings = settings_of(objects, tmp_path)
    assert settings.log.level == "debug"
    assert settings.kafka.bootstrap == "my-cluster-kafka-bootstrap:9092"


def test_the_operator_of_prometheus_is_given_targets_and_every_alert() -> None:
    objects = rendered(
        *VALUES,
        "monitoring.enabled=true",
        "monitoring.job=delay-eu",
        "monitoring.labels.release=prom",
        "monitoring.runbooks=https://docs.example.com/delay/",
    )
    check(objects)
    monitor, rule = named(objects, "ServiceMonitor"), named(objects, "PrometheusRule")
    assert {one["metadata"]["labels"]["release"] for one in (monitor, rule)} == {"prom"}
    service = named(objects, "Service")
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "delay-eu"
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
    ours = yaml.safe_load((ROOT / "deploy/prometheus/delayservice.rules.yml").read_text("utf-8"))
    alerts = [one for group in rule["spec"]["groups"] for one in group["rules"]]
    assert len(alerts) == sum(len(group["rules"]) for group in ours["groups"])
    (down,) = (one for one in alerts if one.get("alert") == "DelayNodeDown")
    assert down["expr"] == 'up{job="delay-eu"} == 0'
    url = "https://docs.example.com/delay/operations.md#delaynodedown"
    assert down["annotations"]["runbook_url"] == url


def test_only_named_peers_reach_the_api() -> None:
    closed = named(rendered(*VALUES), "NetworkPolicy")["spec"]["ingress"]
    assert [port["port"] for rule in closed for port in rule["ports"]] == ["metrics"]
    more = "networkPolicy.adminFrom[0].namespaceSelector.matchLabels.team=ops"
    opened = named(rendered(*VALUES, more), "NetworkPolicy")["spec"]["ingress"]
    assert opened[1]["from"] == [{"namespaceSelector": {"matchLabels": {"team": "ops"}}}]


def test_two_releases_share_no_name_and_no_label() -> None:
    first, second = rendered(*VALUES), rendered(*VALUES, release="eu")
    check(second)
    names = {(one["kind"], one["metadata"]["name"]) for one in first}
    assert not names & {(one["kind"], one["metadata"]["name"]) for one in second}
    pod = named(second, "StatefulSet", "eu-delayservice")["spec"]["template"]["metadata"]["labels"]
    assert not named(first, "Service")["spec"]["selector"].items() <= pod.items()
