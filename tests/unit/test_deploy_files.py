"""Files of compose, Kubernetes, systemd and Helm.

``REWRITE_RENDERED=1`` writes the files of ``tests/unit/rendered`` anew; a reviewer reads the diff.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from typer.testing import CliRunner

from connectors.spark.common.session import EXIT_FINDINGS, EXIT_UNJUDGED, JAVA_VERSIONS
from delayservice.cli import app
from delayservice.config.kafka import is_secret_name
from delayservice.config.settings import Settings, load
from delayservice.process.worker import STOP_TIMEOUT_S
from tests.deployed import LARGE, ROOT, SMALL, Service, nodes, parse, seconds, services
from tests.docs.pages import bare, commands
from tests.needs import program

ALL = list(services().values())
EACH = [*ALL, *services(SMALL).values()]
every_service = pytest.mark.parametrize("service", EACH, ids=lambda one: one.name)
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")


@every_service
def test_a_container_has_no_rights_and_an_image_of_one_version(service: Service) -> None:
    facts = service.facts
    assert re.search(r":v?\d+\.\d+\.\d+$", facts["image"])
    assert facts["cap_drop"] == ["ALL"]
    assert facts["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & set(facts)
    writes_its_configuration = service.name.startswith(("kafka", "zookeeper"))
    assert bool(facts.get("read_only")) is not writes_its_configuration
    files = [v for v in facts.get("volumes", []) if v.startswith(".")]
    assert all(volume.endswith(":ro") for volume in files)


@pytest.mark.parametrize("file", [LARGE, SMALL])
def test_a_port_is_published_on_loopback_and_once(file: str) -> None:
    published = [port for one in services(file).values() for port in one.facts.get("ports", [])]
    hosts = {port.rpartition(":")[0] for port in published}
    assert len(hosts) == len(published) > 0
    assert all(host.startswith("127.0.0.1:") for host in hosts)


def test_secrets_are_files_that_one_container_makes_and_the_nodes_read() -> None:
    for name, value in (pair for one in EACH for pair in one.environment.items()):
        if is_secret_name(name.lower()):
            assert (name[-5:], value[:18]) == ("_FILE", "/etc/delayservice/")
    users = {one.name: v for one in ALL for v in one.facts.get("volumes", []) if "secrets:" in v}
    assert [name for name, volume in users.items() if not volume.endswith(":ro")] == ["secrets"]
    assert users.keys() == {"secrets", *(node.name for node in nodes())}


@pytest.mark.parametrize("service", [s for s in EACH if s.is_ours], ids=lambda one: one.name)
def test_every_setting_and_command_of_ours_is_one(service: Service) -> None:
    assert all(name.startswith("DELAYSERVICE_") for name in service.environment)
    assert service.settings is not None
    if "entrypoint" not in service.facts:
        parse(service.command)
    if service.command == ["run"]:
        assert seconds(service.facts["stop_grace_period"]) > STOP_TIMEOUT_S + 5


def test_nodes_differ_in_their_name_and_broker_alone() -> None:
    own = {"DELAYSERVICE_NODE__NODE_ID", "DELAYSERVICE_NODE__BROKER_ID"}
    common = [{n: v for n, v in node.environment.items() if n not in own} for node in nodes()]
    assert common == [common[0]] * 3
    brokers = {
        (one.facts["network_mode"], one.environment["KAFKA_NODE_ID"])
        for one in ALL
        if "KAFKA_NODE_ID" in one.environment
    }
    assert brokers == {(n.facts["network_mode"], str(n.settings.node.broker_id)) for n in nodes()}


def test_three_copies_of_which_two_are_written() -> None:
    copies = {
        (name, value)
        for one in ALL
        for name, value in one.environment.items()
        if name.endswith(("REPLICATION_FACTOR", "MIN_ISR", "MIN_INSYNC_REPLICAS"))
    }
    assert len(copies) == 7
    assert all(value == ("3" if name.endswith("FACTOR") else "2") for name, value in copies)


@pytest.mark.parametrize("name", ["audit", "reconcile"])
def test_a_job_of_spark_goes_on_and_keeps_its_results(name: str) -> None:
    job, node = services()[name], nodes()[0]
    assert job.facts["profiles"] == ["spark"]
    assert job.command[:3] == ["spark", name, "--follow"]
    folder = job.facts["volumes"][0].partition(":")[2]
    assert f"--out={folder}/{name}" in job.command
    assert f"{folder}/{name}/summary.json " in job.facts["healthcheck"]["test"][1]
    assert job.environment.items() <= node.environment.items()
    assert name == "audit" or f"--replicas={len(nodes())}" in job.command


# --- the images ----------------------------------------------------------------------------------


def test_an_image_runs_as_a_user_without_rights_on_a_pinned_base() -> None:
    assert re.search(r"^ARG BASE_IMAGE=\S+:\d+\.\d+\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) <= {
        "${BASE_IMAGE}",
        *re.findall(r" AS (\S+)$", DOCKERFILE, re.MULTILINE),
    }
    for target in ("service", "spark"):
        stage = DOCKERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
        # Nothing runs by it after USER, so nothing of the image is its own.
        assert "\nUSER 10001:10001\n" in stage
        assert "\nRUN " not in stage


def test_an_image_installs_locked_packages_and_a_java_that_spark_runs_on() -> None:
    for words in re.findall(r"/pip (?:install|wheel)[^&\n]*", DOCKERFILE):
        assert "--require-hashes" in words or "--no-index" in words
    (release,) = re.findall(r"openjdk-(\d+)-jre-headless", DOCKERFILE)
    assert int(release) in JAVA_VERSIONS


def test_the_build_context_is_what_is_copied() -> None:
    listed = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    copied = {
        word.split("/")[0]
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
        for word in line.split()
    }
    assert {line[1:] for line in listed if line.startswith("!")} == copied
    assert "*" in listed


# --- ``deploy/kubernetes``: the schemas of Kubernetes, and what the examples must agree with ------


FOLDER = ROOT / "deploy/kubernetes"
NODES, SPARK = (
    list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))
    for name in ("delayservice.yaml", "spark.yaml")
)
CONFIG, _, BUDGET, BROKERS = NODES
POD: dict[str, Any] = BROKERS["spec"]["template"]["spec"]
BROKER, NODE = POD["containers"]
JOBS = [one["spec"]["jobTemplate"]["spec"] for one in SPARK if one["kind"] == "CronJob"]


def heap_gib(words: list[str]) -> int:
    (heap,) = (w.rpartition("=")[2] for w in words if "spark.driver.memory" in w)
    return int(heap.removesuffix("g"))


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
    # 1 GiB a worker; the default number is by the cores of the machine.
    assert "workers" in settings.node.model_fields_set
    assert NODE["resources"]["limits"]["memory"] == f"{settings.node.workers}Gi"


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
    limit = container["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Gi")) >= heap_gib(container["args"]) + 2


def test_a_command_of_the_run_books_names_the_namespace_and_resources_in_one_form() -> None:
    typed = re.findall(r"kubectl .*", (FOLDER / "run-books.sh").read_text("utf-8"))
    assert len(typed) == 10
    assert [one for one in typed if "$NAMESPACE" not in one] == []
    # kubectl refuses `pvc NAME pod/NAME`.
    assert [one for one in typed if re.search(r" delete [^/ ]+ .*/", one)] == []


# --- ``deploy/systemd``: what systemd itself says of the units, and what they must agree with -----


UNITS = ROOT / "deploy/systemd"
UNIT = UNITS / "delayservice.service"
STANDALONE = UNITS / "standalone.conf"
JOB = UNITS / "delayservice-spark@.service"
SERVICES = sorted(UNITS.glob("*.service"))
every_unit = pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
EXPOSURE_MAX = 2.0
"""Of 10; systemd calls what is below 2.5 OK, and a unit without any protection has 9.2."""


def values(unit: Path, key: str) -> list[str]:
    """All values of a key: some are given again."""
    return re.findall(rf"^{key}=(.*)$", unit.read_text("utf-8"), re.MULTILINE)


def environment(unit: Path) -> dict[str, str]:
    words = " ".join(values(unit, "Environment")).split()
    return dict(word.split("=", 1) for word in words)


def analyze(*arguments: str | Path) -> str:
    done = subprocess.run(
        [program("systemd-analyze", "systemd-tools"), "--no-pager", *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_takes_the_units_and_warns_of_nothing(tmp_path: Path) -> None:
    units = []
    for unit in sorted(set(UNITS.iterdir()) - {STANDALONE}):
        # It looks for the program, which is not installed here.
        text = unit.read_text("utf-8").replace("/opt/delayservice/bin/delayservice", sys.executable)
        units.append(tmp_path / unit.name)
        units[-1].write_text(text)
    assert len(units) == 4
    assert analyze("verify", "--man=no", *units) == ""


@every_unit
def test_a_unit_exposes_next_to_nothing(unit: Path) -> None:
    told = analyze("security", "--offline=true", unit)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert found is not None, told
    assert float(found[1]) <= EXPOSURE_MAX


@every_unit
def test_its_command_settings_and_secrets_are_the_services(unit: Path) -> None:
    _, *words = values(unit, "ExecStart")[0].split()
    parse([word.replace("%i", "audit") for word in words])
    given = environment(unit)
    load(None, [], {n: v for n, v in given.items() if n.startswith("DELAYSERVICE_")})
    files = {v.removeprefix("%d/") for n, v in given.items() if n.endswith("_FILE")}
    assert {line.partition(":")[0] for line in values(unit, "LoadCredential")} == files != set()
    # Kafka's password is there: it has no file setting.
    assert values(unit, "EnvironmentFile") == ["-/etc/delayservice/node.env"]
    assert f"%S/{values(unit, 'StateDirectory')[0]}" in unit.read_text("utf-8")


def test_a_node_without_an_ensemble_is_not_started_unless_a_drop_in_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayservice.process.node.run", lambda _settings: 0)
    (usual,), alone = values(UNIT, "ExecStart"), values(STANDALONE, "ExecStart")
    assert alone == ["", usual.removesuffix(" --require zookeeper.hosts")]
    node = '[node]\ncluster_secret = "0123456789abcdef"\n[kafka]\nbootstrap = "kafka:9092"\n'
    config = tmp_path / "delayservice.toml"
    words = usual.replace("/etc/delayservice/delayservice.toml", str(config)).split()[1:]
    for hosts, status in (('hosts = "zk:2181"', 0), ('hosts = ""', 1), ("", 1)):
        config.write_text(f"{node}[zookeeper]\n{hosts}\n", "utf-8")
        assert CliRunner().invoke(app, words).exit_code == status
    assert load(config, [], environment(STANDALONE)).zookeeper.hosts == ""


def test_a_stop_is_given_the_time_that_the_node_takes() -> None:
    assert seconds(values(UNIT, "TimeoutStopSec")[0]) > STOP_TIMEOUT_S + 5
    # The supervisor ends its workers itself; a SIGTERM to all at once would be a second one.
    assert values(UNIT, "KillMode") == ["mixed"]
    assert values(UNIT, "Restart") == ["on-failure"]


@pytest.mark.parametrize("name", ["audit", "reconcile"])
def test_a_job_runs_each_hour_and_ends(name: str) -> None:
    unit, timer = JOB, UNITS / f"delayservice-{name}.timer"
    assert values(timer, "Unit") == [unit.name.replace("@", f"@{name}")]
    words = values(unit, "ExecStart")[0].replace("%i", name).split()
    parse(words[1:])
    assert words[1:3] == ["spark", name]
    assert "--publish" in words
    # It yields to the nodes: weights are compared within a slice.
    assert values(unit, "Slice") == ["system.slice"]
    assert "--follow" not in words
    # A unit fails when something was found, and is not tried again.
    assert values(unit, "Type") == ["oneshot"]
    assert values(unit, "SuccessExitStatus") == values(unit, "Restart") == []
    assert re.fullmatch(r"\*-\*-\* \*:\d\d:00", values(timer, "OnCalendar")[0])
    assert seconds(values(unit, "TimeoutStartSec")[0]) < 3_600
    assert int(values(unit, "MemoryMax")[0].removesuffix("G")) >= heap_gib(words) + 2


# --- ``deploy/helm``: what the chart makes of its values, held against what was reviewed ----------


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
HELM_CONFIG = '[kafka]\nbootstrap = "unused:1"\n\n[log]\nlevel = "debug"\n'
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
    (tmp_path / "own.toml").write_text(HELM_CONFIG, "utf-8")
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
