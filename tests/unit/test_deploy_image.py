"""``Dockerfile`` and ``.dockerignore``: what can be known of them without an engine."""

from __future__ import annotations

import json
import re

import pytest

from connectors.spark.common.session import JAVA_VERSIONS
from delayservice.config.settings import load
from tests.deployed import ROOT, parse

LINES = [
    line.strip()
    for line in (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
    if line.strip() and not line.lstrip().startswith("#")
]


def said(word: str) -> list[str]:
    """What follows an instruction, for each time that it is given."""
    return [line.partition(" ")[2].strip() for line in LINES if line.split()[0] == word]


def stages() -> dict[str, list[str]]:
    """The lines of each stage that has a name, after its FROM."""
    found: dict[str, list[str]] = {}
    for line in LINES:
        if line.startswith("FROM "):
            own = found.setdefault(line.partition(" AS ")[2], [])
        elif not line.startswith("ARG "):
            own.append(line)
    return found


@pytest.mark.parametrize("base", said("FROM"))
def test_a_stage_begins_with_the_base_or_an_earlier_stage(base: str) -> None:
    first, *named = base.split()
    earlier = list(stages())[: list(stages()).index(named[-1])] if named else list(stages())
    assert first == "${BASE_IMAGE}" or first in earlier


def test_the_base_has_a_version_and_can_be_named() -> None:
    (base,) = said("ARG")
    assert re.fullmatch(r"BASE_IMAGE=\S+:\d+\.\d+\.\d+-slim-\w+", base)


def test_the_default_target_is_the_service() -> None:
    assert LINES[-1] == "FROM service"


@pytest.mark.parametrize("target", ["service", "spark"])
def test_it_runs_as_nobody_who_may_do_anything(target: str) -> None:
    lines = stages()[target]
    assert "USER 10001:10001" in lines
    # What comes after USER runs by it: no RUN, which could write to the image.
    assert not [line for line in lines if line[:3] == "RUN"]


def test_the_user_has_one_number_in_every_image() -> None:
    assert set(said("USER")) == {"10001:10001"}
    runtime = " ".join(stages()["runtime"])
    assert "groupadd --system --gid 10001 delayservice" in runtime
    # A home that is made brings the shell's files along, into the volume with the state.
    assert "useradd --system --uid 10001 --gid 10001" in runtime
    assert "--no-create-home" in runtime
    assert [line.split()[0] for line in said("FROM") if line.endswith((" service", " java"))] == [
        "runtime",
        "runtime",
    ]
    assert "java AS spark" in said("FROM")


def test_the_image_of_the_jobs_has_a_java_that_spark_runs_on_and_fetches_nothing() -> None:
    (java,) = (line for line in stages()["java"] if line.startswith("RUN"))
    release = re.search(r"openjdk-(\d+)-jre-headless", java)
    assert release is not None
    assert int(release[1]) in JAVA_VERSIONS
    build = " ".join(stages()["spark-build"])
    assert "--require-hashes" in build
    assert "-r /src/requirements/spark.txt" in build
    assert "connectors/spark/common/install_jars.sh" in build
    assert "COPY --from=spark-build /opt/delayservice /opt/delayservice" in stages()["spark"]
    assert not [line for line in stages()["spark"] if line.startswith(("HEALTHCHECK", "EXPOSE"))]


def test_the_build_context_is_what_is_copied() -> None:
    listed = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    allowed = {line[1:] for line in listed if line.startswith("!")}
    copied = {
        word.split("/")[0]
        for line in said("COPY")
        if not line.startswith("--from")
        for word in line.split()[:-1]
    }
    assert "*" in listed
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_it_exposes_the_ports_that_a_node_has_by_default() -> None:
    settings = load(None, [], {})
    ports = [
        listen.rpartition(":")[2] for listen in (settings.metrics.listen, settings.admin.listen)
    ]
    assert said("EXPOSE") == [" ".join(ports)]


def test_its_commands_and_its_environment_are_the_services() -> None:
    assert [json.loads(word) for word in said("ENTRYPOINT")] == [["delayservice"]] * 2
    service, spark = (json.loads(word) for word in said("CMD"))
    parse(service)
    assert spark == ["spark", "--help"]
    checked = json.loads(said("HEALTHCHECK")[0].partition("CMD ")[2])
    assert checked[0] == "delayservice"
    parse(checked[1:])
    pairs = dict(pair.split("=", 1) for line in said("ENV") for pair in line.split())
    ours = {name: value for name, value in pairs.items() if name.startswith("DELAYSERVICE_")}
    folder = str(load(None, [], ours).node.state_dir)
    assert said("VOLUME") == said("WORKDIR") == [folder, folder]
