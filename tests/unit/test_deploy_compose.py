"""The Compose files and the Dockerfile: rules that a run of the containers does not show."""

from __future__ import annotations

import re

import pytest

from connectors.spark.common.session import JAVA_VERSIONS
from delayservice.config.kafka import is_secret_name
from delayservice.process.worker import STOP_TIMEOUT_S
from tests.deployed import LARGE, ROOT, SMALL, Service, nodes, parse, seconds, services

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
