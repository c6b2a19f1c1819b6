"""``docker-compose.yml``: what can be known of it without an engine."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml

from delayservice.config.kafka import is_secret_name
from delayservice.process.worker import STOP_TIMEOUT_S
from tests.deployed import (
    LARGE,
    ROOT,
    SMALL,
    Service,
    UsageError,
    compose,
    nodes,
    pair_of,
    pairs,
    parse,
    seconds,
    services,
)

ALL = list(services().values())
EACH = [*ALL, *services(SMALL).values()]
every_service = pytest.mark.parametrize(
    "service", EACH, ids=[f"{'small ' * (one.file == SMALL)}{one.name}" for one in EACH]
)
every_file = pytest.mark.parametrize("file", [LARGE, SMALL])
VERSION = re.compile(r":v?\d+\.\d+\.\d+$")
NODE_KILLS_WORKERS_S = STOP_TIMEOUT_S + 5


@pytest.mark.parametrize(
    "program",
    [
        ["docker-compose"],
        ["docker", "compose"],
    ],
    ids=["docker-compose", "docker compose"],
)
@every_file
def test_compose_itself_takes_the_file(file: str, program: list[str]) -> None:
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed: type `make compose-tools`")
    if subprocess.run([*program, "version"], check=False, capture_output=True).returncode:
        pytest.skip(f"{' '.join(program)} is not installed")
    done = subprocess.run(
        [*program, "-f", ROOT / file, "--profile", "spark", "config"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(services(file))


@every_service
def test_an_image_has_a_version(service: Service) -> None:
    assert VERSION.search(service.facts["image"])


@every_file
def test_a_port_is_published_on_loopback_and_once(file: str) -> None:
    published = [port for one in services(file).values() for port in one.facts.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published), published
    hosts = [port.rpartition(":")[0] for port in published]
    assert len(set(hosts)) == len(hosts)


@every_service
def test_a_container_can_gain_no_rights(service: Service) -> None:
    facts = service.facts
    assert facts["cap_drop"] == ["ALL"]
    assert facts["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & set(facts)


@every_service
def test_the_root_is_read_only_but_where_the_image_writes_its_configuration(
    service: Service,
) -> None:
    writes_its_own = service.name.startswith(("kafka", "zookeeper"))
    assert bool(service.facts.get("read_only")) is not writes_its_own


@every_service
def test_a_service_has_a_health_check_unless_it_ends_by_itself(service: Service) -> None:
    only_waits = service.facts["restart"] == "no" or service in pairs(service.file)
    check = service.facts.get("healthcheck", {})
    has_check = "test" in check or service in nodes(service.file)
    assert has_check is not only_waits
    # The image's own check is that of a node.
    assert bool(check.get("disable")) is only_waits


@every_service
def test_mounted_files_exist_and_are_read_only(service: Service) -> None:
    declared = compose(service.file)["volumes"]
    for source, inside, *mode in (v.split(":") for v in service.facts.get("volumes", [])):
        if source.startswith("."):
            assert (ROOT / source).exists(), source
            assert mode == ["ro"], source
        else:
            assert source in declared, source
        assert inside.startswith("/")


@every_service
def test_no_secret_is_in_the_environment(service: Service) -> None:
    for name, value in service.environment.items():
        if is_secret_name(name.lower()):
            assert name.endswith("_FILE"), name
            assert value.startswith("/etc/delayservice/")


def test_only_the_one_that_makes_the_secrets_may_write_them() -> None:
    users = {one.name: v for one in ALL for v in one.facts.get("volumes", []) if "secrets:" in v}
    writers = [name for name, volume in users.items() if not volume.endswith(":ro")]
    assert writers == ["secrets"]
    assert users.keys() == {"secrets", *(node.name for node in nodes())}


@pytest.mark.parametrize("service", [s for s in EACH if s.is_ours], ids=lambda one: one.name)
def test_every_setting_and_command_of_ours_is_one(service: Service) -> None:
    assert all(name.startswith("DELAYSERVICE_") for name in service.environment)
    assert service.settings is not None
    if "entrypoint" not in service.facts:
        parse(service.command)


JOBS = [one for one in ALL if "profiles" in one.facts]
every_job = pytest.mark.parametrize("job", JOBS, ids=lambda one: one.name)


def test_the_jobs_of_spark_start_when_they_are_asked_for() -> None:
    assert {one.name: one.facts["profiles"] for one in JOBS} == {
        "audit": ["spark"],
        "reconcile": ["spark"],
    }
    assert not [one for one in ALL if set(one.facts.get("depends_on", [])) & {"audit", "reconcile"}]


def test_ours_are_built_from_the_target_that_their_image_is_named_after() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    built = {one.facts["image"]: one.facts["build"] for one in ALL if one.is_ours}
    assert {image.partition(":")[0]: how["target"] for image, how in built.items()} == {
        "delayservice": "service",
        "delayservice-spark": "spark",
    }
    assert all(f" AS {how['target']}\n" in dockerfile for how in built.values())


@every_job
def test_a_job_goes_on_and_keeps_its_results_and_its_state(job: Service) -> None:
    assert job.command[:2] == ["spark", job.name]
    assert "--follow" in job.command
    (volume,) = job.facts["volumes"]
    folder = volume.partition(":")[2]
    (out,) = (w.partition("=")[2] for w in job.command if w.startswith("--out="))
    assert out.startswith(f"{folder}/")
    # What it writes each time tells whether it goes on.
    assert f"{out}/summary.json " in job.facts["healthcheck"]["test"][1]
    assert job.facts["restart"] == "unless-stopped"
    # Ended by SIGTERM, it first ends the cut or the comparison that is under way.
    assert seconds(job.facts["stop_grace_period"]) >= 60
    # Java loads its native libraries from there, which the default of a tmpfs forbids.
    assert job.facts["tmpfs"] == ["/tmp:exec"]  # noqa: S108


@every_job
def test_a_job_reads_what_the_nodes_allow_on_their_brokers(job: Service) -> None:
    node = nodes()[0].environment
    assert job.environment == {
        name: node[name]
        for name in ("DELAYSERVICE_KAFKA__BOOTSTRAP", "DELAYSERVICE_TARGETS__DEFAULT__ALLOW")
    }


def test_the_comparison_expects_a_copy_on_each_node() -> None:
    (job,) = (one for one in JOBS if one.name == "reconcile")
    assert f"--replicas={len(nodes())}" in job.command
    assert nodes()[0].settings.placement.replicas == "all"


def test_a_command_that_is_none_is_noticed() -> None:
    with pytest.raises(UsageError, match="--recods"):
        parse(["smoke", "--recods", "1000"])


def test_a_node_sits_beside_each_broker_and_shares_its_network() -> None:
    brokers = {
        one.facts["network_mode"]: int(one.environment["KAFKA_NODE_ID"])
        for one in ALL
        if "KAFKA_NODE_ID" in one.environment
    }
    beside = {node.facts["network_mode"]: node.settings.node.broker_id for node in nodes()}
    assert beside == brokers
    assert beside.keys() == {f"service:{one.name}" for one in pairs()}
    assert len({node.settings.node.node_id for node in nodes()}) == len(brokers) == 3


@pytest.mark.parametrize("pair", [*pairs(), *pairs(SMALL)], ids=lambda one: one.name)
def test_the_network_of_a_pair_has_its_brokers_name_and_outlives_both(pair: Service) -> None:
    (broker,) = (
        one
        for one in services(pair.file).values()
        if one.facts.get("network_mode") == f"service:{pair.name}"
        and "KAFKA_NODE_ID" in one.environment
    )
    assert pair.facts["networks"] == {"default": {"aliases": [broker.name]}}
    assert broker.facts["depends_on"] == {pair.name: {"condition": "service_started"}}
    assert pair.facts["entrypoint"] == ["/bin/sleep", "infinity"]
    assert pair.facts["init"] is True
    assert "volumes" not in pair.facts


def test_nodes_differ_in_their_name_and_broker_only() -> None:
    own = {"DELAYSERVICE_NODE__NODE_ID", "DELAYSERVICE_NODE__BROKER_ID"}
    common = [{n: v for n, v in node.environment.items() if n not in own} for node in nodes()]
    assert common == [common[0]] * 3


@pytest.mark.parametrize("node", [*nodes(), *nodes(SMALL)], ids=lambda one: one.name)
def test_the_ports_of_a_node_are_published_by_its_pair(node: Service) -> None:
    pair = pair_of(node)
    inside = {port.rpartition(":")[2] for port in pair.facts["ports"]}
    listens = [node.settings.metrics.listen, node.settings.admin.listen]
    assert [listen.partition(":")[0] for listen in listens] == ["0.0.0.0"] * 2  # noqa: S104
    assert {listen.partition(":")[2] for listen in listens} <= inside


def test_three_copies_of_which_two_are_written() -> None:
    for one in ALL:
        for name, value in one.environment.items():
            if name.startswith("KAFKA_") and name.endswith("REPLICATION_FACTOR"):
                assert value == "3", name
            if name.endswith(("MIN_ISR", "MIN_INSYNC_REPLICAS")):
                assert value == "2", name
    some = services()["kafka-1"].environment
    assert {"KAFKA_DEFAULT_REPLICATION_FACTOR", "KAFKA_MIN_INSYNC_REPLICAS"} <= some.keys()


def test_zookeeper_is_an_ensemble_that_the_nodes_know() -> None:
    ensemble = [one for one in ALL if "ZOO_MY_ID" in one.environment]
    for one in ensemble:
        listed = dict(s.split("=") for s in one.environment["ZOO_SERVERS"].split())
        assert listed[f"server.{one.environment['ZOO_MY_ID']}"].startswith(f"{one.name}:")
        assert len(listed) == len(ensemble) == 3
        session_s = nodes()[0].settings.zookeeper.session_timeout_s
        tick_s = int(one.environment["ZOO_TICK_TIME"]) / 1_000
        assert 2 * tick_s <= session_s <= 20 * tick_s
    known = {f"{one.name}:2181" for one in ensemble}
    assert set(nodes()[0].settings.zookeeper.hosts.split(",")) == known


@pytest.mark.parametrize("node", nodes(), ids=lambda one: one.name)
def test_a_node_is_given_the_time_that_it_gives_itself(node: Service) -> None:
    assert seconds(node.facts["stop_grace_period"]) > NODE_KILLS_WORKERS_S


def test_prometheus_scrapes_the_nodes() -> None:
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8")
    scraped = yaml.safe_load(text)["scrape_configs"]
    targets = [t for job in scraped for group in job["static_configs"] for t in group["targets"]]
    listening = {
        f"{pair_of(node).facts['networks']['default']['aliases'][0]}"
        f":{node.settings.metrics.listen.rpartition(':')[2]}"
        for node in nodes()
    }
    assert set(targets) == listening


def test_the_load_goes_where_the_nodes_may_deliver() -> None:
    load = services()["load"].command
    target = load[load.index("--target") + 1]
    allowed = nodes()[0].settings.targets["default"].allow
    assert any(re.fullmatch(pattern.replace("*", ".*"), target) for pattern in allowed)
