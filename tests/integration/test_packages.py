"""The wheels as their users have them: built twice, installed in clean venvs, tried on a broker.

``DIST`` names a folder with wheels to be tried instead (``make dist``).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench, await_true

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "run.txt"
SEND = """
import sys
from kafka_delay_client import DelayProducer, InvalidRequestError
bootstrap, topic, target = sys.argv[1:]
with DelayProducer({"bootstrap.servers": bootstrap}, topic) as producer:
    producer.send(target, b"later", key="k", delay="1500ms", id="one", headers={"trace": b"7"})
    try:
        producer.send("delay_topic_any", b"never", delay=1)
    except InvalidRequestError as exc:
        print(exc)
"""
SASL = [
    f"--set=node.cluster_secret={'s' * 32}",
    "--set=zookeeper.hosts=localhost:1",
    *(f"--set=zookeeper.{one}" for one in ("auth=sasl", "username=a", "password=b")),
]
TYPED = """
from kafka_delay_client import DelayProducer
def send(producer: DelayProducer) -> None:
    producer.send("orders", 1, delay=1)
"""


class Venv:
    """A virtual environment without anything of this repository.

    Args:
        folder: where it is made.
        packages: the folder of packages that it may install; the registry is not asked.
    """

    def __init__(self, folder: Path, packages: Path) -> None:
        venv.create(folder, with_pip=True)
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        self._folder = folder
        self._packages = packages

    def install(self, wheel: Path) -> None:
        self.done("pip", "install", "--no-index", "--find-links", self._packages, wheel)
        self.done("pip", "check")

    def run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run one of its programs where neither folder nor environment leads to this repository."""
        return subprocess.run(
            [self.bin / program, *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=bare_environment(),
        )

    def done(self, program: str, *arguments: str | Path) -> str:
        """What a program writes, which must end with 0."""
        done = self.run(program, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def distributions(self) -> dict[str, Distribution]:
        """What is installed, without the tools that a venv is made with."""
        (site,) = self._folder.glob("lib/python*/site-packages")
        found = {plain(one.name): one for one in distributions(path=[str(site)])}
        return {name: one for name, one in found.items() if name not in ("pip", "setuptools")}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def bare_environment() -> Mapping[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}


def build(into: Path, umask: int) -> Path:
    program = [ROOT / "deploy" / "build-wheels", into]
    env = {**bare_environment(), "PYTHON": sys.executable}
    subprocess.run(program, check=True, env=env, umask=umask)
    return into


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("DIST")
    return Path(given) if given else build(tmp_path_factory.mktemp("dist"), 0o022)


@pytest.fixture(scope="module")
def service_wheel(wheels: Path) -> Path:
    (wheel,) = wheels.glob("kafka_delay_service-*.whl")
    return wheel


@pytest.fixture(scope="module")
def client_wheel(wheels: Path) -> Path:
    (wheel,) = wheels.glob("kafka_delay_client-*.whl")
    return wheel


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the lock lists, each by its hash."""
    folder = tmp_path_factory.mktemp("packages")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    locked = ["--only-binary", ":all:", "--require-hashes", "--requirement", str(LOCK)]
    subprocess.run([*pip, *locked, "--dest", str(folder)], check=True, env=bare_environment())
    return folder


@pytest.fixture(scope="module")
def client_venv(
    client_wheel: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Venv:
    made = Venv(tmp_path_factory.mktemp("client"), packages)
    made.install(client_wheel)
    return made


@pytest.fixture(scope="module")
def service_venv(
    service_wheel: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Venv:
    made = Venv(tmp_path_factory.mktemp("service"), packages)
    made.install(service_wheel)
    return made


@pytest.fixture(scope="module")
def shared_venv(client_wheel: Path, service_venv: Venv) -> Venv:
    service_venv.install(client_wheel)
    return service_venv


def test_a_second_build_gives_the_same_bytes(wheels: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "again", 0o077)
    assert {one.name for one in again.iterdir()} == {one.name for one in wheels.iterdir()}
    for one in again.iterdir():
        assert one.read_bytes() == (wheels / one.name).read_bytes(), one.name


def test_the_client_brings_along_kafka_and_a_hash_and_nothing_else(client_venv: Venv) -> None:
    assert set(client_venv.distributions()) <= {
        "kafka-delay-client",
        "confluent-kafka",
        "murmurhash2",
        "typing-extensions",  # confluent-kafka's, below Python 3.11
    }


def test_the_client_is_typed(client_venv: Venv, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(TYPED, "utf-8")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-incremental"]
    done = subprocess.run(
        [*mypy, "--python-executable", client_venv.python, "user.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=bare_environment(),
    )
    # Its types are known: the one mistake is found.
    assert 'Argument 2 to "send" of "DelayProducer" has incompatible type "int"' in done.stdout
    assert "Found 1 error in 1 file" in done.stdout


def test_the_service_brings_along_what_the_lock_lists(service_venv: Venv) -> None:
    locked = re.findall(r"^([\w.-]+)==(\S+)(?: ;.*)?", LOCK.read_text("utf-8"), re.MULTILINE)
    found = {name: one.version for name, one in service_venv.distributions().items()}
    assert found.pop("kafka-delay-service")
    found.pop("kafka-delay-client", None)  # of another test, and it needs no more
    elsewhere = {"colorama"}  # of other systems
    assert found == {plain(name): version for name, version in locked if name not in elsewhere}


def test_every_page_of_help_is_there(service_venv: Venv) -> None:
    assert service_venv.done("delayservice", "version").startswith("delayservice ")
    commands = re.findall(
        r"^│ ([a-z]+) ", service_venv.done("delayservice", "--help"), re.MULTILINE
    )
    assert len(commands) > 10
    for command in commands:
        service_venv.done("delayservice", command, "--help")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["bench", "whole", "--json"], r"bench belongs to .*kafka_delay_devtools-"),
        (["demo"], r"demo belongs to .*kafka_delay_devtools-"),
        (["dev", "up"], r"dev up belongs to .*kafka_delay_devtools-"),
        (["spark", "drill", "--records", "5"], r"spark drill belongs to .*kafka_delay_devtools-"),
        (["spark", "report", "-b", "localhost:1"], r"need pyspark.*\[spark\]"),
        (["zookeeper", "rights", *SASL], "needs the package pure-sasl.*zookeeper-sasl"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_only_an_extra_brings_is_named(
    service_venv: Venv, command: list[str], said: str
) -> None:
    done = service_venv.run("delayservice", *command)
    assert done.returncode == 1
    assert re.search(said, " ".join(done.stderr.split())), done.stderr


def test_the_wheel_of_the_development_tools_adds_their_commands(
    service_venv: Venv, wheels: Path
) -> None:
    (wheel,) = wheels.glob("kafka_delay_devtools-*.whl")
    service_venv.done("pip", "install", "--no-index", "--no-deps", wheel)
    try:
        for command in (["demo"], ["bench"], ["dev", "up"], ["dev", "try"], ["spark", "drill"]):
            assert "belongs to" not in service_venv.done("delayservice", *command, "--help")
    finally:
        service_venv.done("pip", "uninstall", "--yes", "kafka-delay-devtools")


def test_the_load_of_the_compose_file_needs_no_extra(service_venv: Venv) -> None:
    service_venv.done("python", "-c", "import delayservice.smoke.run")


def test_service_and_client_share_no_file(shared_venv: Venv) -> None:
    service, client = (
        {str(one) for one in shared_venv.distributions()[name].files or ()}
        for name in ("kafka-delay-service", "kafka-delay-client")
    )
    assert service
    assert client
    assert not service & client
    assert {name.partition("/")[0] for name in client} == {
        "kafka_delay_client",
        next(name.partition("/")[0] for name in client if ".dist-info/" in name),
    }


def test_the_installed_client_sends_and_the_installed_service_delivers(
    cluster: EmbeddedCluster, shared_venv: Venv, client_venv: Venv, tmp_path: Path
) -> None:
    with Bench(cluster.bootstrap, tmp_path) as bench:
        target = bench.target("packages")
        sets = [word for one in bench.settings("log.format=json") for word in ("--set", one)]
        with bench.log_path.open("wb") as log:
            service = subprocess.Popen(
                [shared_venv.bin / "delayservice", "run", *sets],
                stdout=log,
                stderr=log,
                cwd=tmp_path,
                env=bare_environment(),
            )
        try:
            await_true(
                lambda: b'"took_over"' in bench.log_path.read_bytes(), "a service that serves"
            )
            said = client_venv.done("python", "-c", SEND, bench.bootstrap, bench.any, target)
            assert "reserved" in said
            (seen,) = bench.read(target, 1)
            assert (seen.key, seen.value) == (b"k", b"later")
            assert (seen.header("trace"), seen.header("delay-id")) == ("7", "one")
        finally:
            service.terminate()
            assert service.wait(40) == 0
