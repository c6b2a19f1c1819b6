"""The wheel as its users have it: built twice, installed in clean venvs, tried on a broker.

``DIST`` names a folder with a wheel to be tried instead (``make dist``).
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
from tests.conftest import MakeTopic
from tests.integration.bench import Bench, Reader, await_true

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "node.txt"
SEND = """
import sys
from connectors.kafka.client import DelayProducer, InvalidRequestError
bootstrap, topic, target = sys.argv[1:]
with DelayProducer({"bootstrap.servers": bootstrap}, topic) as producer:
    producer.send(target, b"later", key="k", delay="1500ms", id="one", headers={"trace": b"7"})
    try:
        producer.send("delay_topic_any", b"never", delay=1)
    except InvalidRequestError as exc:
        print(exc)
"""
TYPED = """
from connectors.kafka.client import DelayProducer
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

    def install(self, wheel: Path, extra: str = "") -> None:
        wanted = f"{wheel}[{extra}]" if extra else wheel
        self.done("pip", "install", "--no-index", "--find-links", self._packages, wanted)
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
    words = ["make", "--silent", "-C", str(ROOT), "wheel", f"DIST={into}"]
    subprocess.run(words, check=True, env=bare_environment(), umask=umask)
    (wheel,) = into.glob("kafka_delay_service-*.whl")
    return wheel


def download(lock: Path, into: Path) -> None:
    """What a lock lists, each by its hash; what comes as source only is built."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    locked = ["--no-build-isolation", "--no-deps", "--require-hashes", "--requirement", str(lock)]
    subprocess.run([*pip, *locked, "--wheel-dir", str(into)], check=True, env=bare_environment())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("DIST")
    if given is None:
        return build(tmp_path_factory.mktemp("dist"), 0o022)
    (found,) = Path(given).glob("kafka_delay_service-*.whl")
    return found


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    download(LOCK, folder)
    return folder


@pytest.fixture(scope="module")
def client_venv(wheel: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    made = Venv(tmp_path_factory.mktemp("client"), packages)
    made.install(wheel)
    return made


@pytest.fixture(scope="module")
def node_venv(wheel: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    made = Venv(tmp_path_factory.mktemp("node"), packages)
    made.install(wheel, "node")
    return made


@pytest.fixture(scope="module")
def spark_venv(wheel: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    download(LOCK.with_name("spark.txt"), packages)
    made = Venv(tmp_path_factory.mktemp("spark"), packages)
    made.install(wheel, "spark")
    return made


def test_a_second_build_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "again", 0o077)
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_the_wheel_holds_the_service_and_no_development_tools(client_venv: Venv) -> None:
    files = client_venv.distributions()["kafka-delay-service"].files or ()
    tops = {str(one).partition("/")[0] for one in files}
    folders = {name for name in tops if name.isidentifier()}
    assert folders == {"delayservice", "connectors", "ha"}


def test_the_client_needs_five_packages_and_no_others(client_venv: Venv) -> None:
    assert set(client_venv.distributions()) <= {
        "kafka-delay-service",
        "confluent-kafka",
        "cronsim",
        "msgspec",
        "murmurhash2",
        "tzdata",
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


def test_a_node_brings_along_what_the_lock_lists(node_venv: Venv) -> None:
    locked = re.findall(r"^([\w.-]+)==(\S+)(?: ;.*)?", LOCK.read_text("utf-8"), re.MULTILINE)
    found = {name: one.version for name, one in node_venv.distributions().items()}
    assert found.pop("kafka-delay-service")
    others = {"colorama"}  # of other systems
    assert found == {plain(name): version for name, version in locked if name not in others}


def test_every_page_of_help_is_there(node_venv: Venv) -> None:
    assert node_venv.done("delayservice", "--version").startswith("delayservice ")
    commands = re.findall(r"^│ ([a-z]+) ", node_venv.done("delayservice", "--help"), re.MULTILINE)
    assert len(commands) > 10
    for command in commands:
        node_venv.done("delayservice", command, "--help")


@pytest.mark.parametrize("command", [["run"], ["--help"]], ids=lambda words: words[0])
def test_without_the_extra_the_command_names_it(client_venv: Venv, command: list[str]) -> None:
    done = client_venv.run("delayservice", *command)
    assert done.returncode == 2
    assert re.search(r"needs typer.*\[node\]", done.stderr), done.stderr


def test_a_job_without_spark_names_its_extra(node_venv: Venv) -> None:
    done = node_venv.run("delayservice", "spark", "report", "-b", "localhost:1")
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert re.search(r"need pyspark.*\[spark\]", said), done.stderr


@pytest.mark.night
def test_a_job_of_spark_runs_with_its_extra_alone(
    cluster: EmbeddedCluster, make_topic: MakeTopic, spark_venv: Venv, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("due,text\n2030-01-01T00:00:00Z,later\n", "utf-8")
    topic, target = make_topic("delay_topic"), make_topic("to")
    words = ["--topic", topic, "--at", "due", "--value", "text", "-t", target]
    sets = ["-b", cluster.bootstrap, "--set", "targets.default.allow=*", "--master", "local[2]"]
    spark_venv.done("delayservice", "spark", "schedule", rows, *words, *sets)
    with Reader(cluster.bootstrap, [topic]) as reader:
        assert len(reader.to_end()) == 1


def test_the_load_of_the_compose_file_needs_no_extra(node_venv: Venv) -> None:
    node_venv.done("python", "-c", "import delayservice.smoke.run")


def test_the_installed_client_sends_and_the_installed_node_delivers(
    cluster: EmbeddedCluster, node_venv: Venv, client_venv: Venv, tmp_path: Path
) -> None:
    with Bench(cluster.bootstrap, tmp_path) as bench:
        target = bench.target("packages")
        sets = [word for one in bench.settings("log.format=json") for word in ("--set", one)]
        with bench.log_path.open("wb") as log:
            service = subprocess.Popen(
                [node_venv.bin / "delayservice", "run", *sets],
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
