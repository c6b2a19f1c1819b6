"""What the packages of the service and of the client say and hold, without building them."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import SecretStr

from delayservice import __version__
from delayservice.base.errors import DelayServiceError
from delayservice.config.cluster import ZooKeeper
from ha import kazoo_client

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client" / "kafka_delay_client"
CARRIED = {
    "connectors.kafka": {"clients", "existing", "outcomes"},
    "delayservice.base": {"errors", "nearest"},
    "delayservice.contract": {
        "aliases",
        "codes",
        "draft",
        "entry",
        "levels",
        "names",
        "partitioner",
        "request",
        "times",
        "topic_names",
    },
}
IN_AN_EMPTY_ROOM = """
import sys
sys.modules.update(dict.fromkeys(["delayservice", "connectors", "ha"]))
import kafka_delay_client as client
producer = client.DelayProducer({"log_level": 0})
producer.send("orders", b"v", delay="1h30m", cron=None)
client.LevelProducer(producer.producer).send("orders", b"v", delay=1)
assert len(producer) == 2
try:
    producer.send("delay_topic_1", b"v", delay=1)
except client.InvalidRequestError as exc:
    print(exc)
producer.producer.purge()
"""


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("client_setup", ROOT / "client" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(build: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's package as its wheel has it."""
    package = tmp_path_factory.mktemp("built") / CLIENT.name
    shutil.copytree(CLIENT, package, ignore=shutil.ignore_patterns("__pycache__"))
    build.add_carried(package)
    return package


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))


def test_the_client_carries_the_contract_and_little_else(build: ModuleType) -> None:
    texts = [path.read_text("utf-8") for path in CLIENT.glob("*.py")]
    expected = {f"{package}.{name}" for package, names in CARRIED.items() for name in names}
    assert set(build.carried_modules(texts)) == expected


def test_the_built_client_imports_kafka_a_hash_and_itself(built: Path) -> None:
    modules = set()
    for path in built.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(str(node.module))
    tops = {name.partition(".")[0] for name in modules}
    assert tops - sys.stdlib_module_names == {"confluent_kafka", "murmurhash2", CLIENT.name}


def test_the_built_client_works_where_the_service_is_not(built: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_AN_EMPTY_ROOM],
        check=False,
        capture_output=True,
        text=True,
        cwd=built.parent,
        env={"PYTHONPATH": str(built.parent)},
    )
    assert done.returncode == 0, done.stderr
    assert "reserved" in done.stdout


def test_an_import_that_can_not_be_renamed_ends_the_build(build: ModuleType) -> None:
    with pytest.raises(ValueError, match="line 2: write"):
        build.renamed("import re\nimport delayservice.contract.times\n")


def test_modules_of_one_name_end_the_build(build: ModuleType, tmp_path: Path) -> None:
    text = (
        "from connectors.kafka.errors import FENCED\n"
        "from delayservice.base.errors import StoreError\n"
    )
    (tmp_path / "user.py").write_text(text, "utf-8")
    with pytest.raises(ValueError, match="have one name"):
        build.add_carried(tmp_path)


def test_service_and_client_have_one_version_licence_and_build_backend() -> None:
    service = project(ROOT)
    assert service["project"]["version"] == __version__
    for other in (project(ROOT / "client"), project(ROOT / "devtools")):
        for field in ("version", "license", "license-files", "requires-python"):
            assert service["project"][field] == other["project"][field]
        assert service["build-system"] == other["build-system"]
    for folder in ("client", "devtools"):
        assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    lock = (ROOT / "requirements" / "build.txt").read_text("utf-8")
    locked = re.findall(r"^\S+==\S+", lock, re.MULTILINE)
    assert service["build-system"]["requires"] == locked


def test_what_both_need_is_required_in_one_version() -> None:
    listed = (ROOT / "requirements" / "run.in").read_text("utf-8").splitlines()
    assert set(project(ROOT / "client")["project"]["dependencies"]) <= set(listed)


def test_the_service_alone_has_no_development_commands() -> None:
    program = (
        "import importlib.metadata as metadata\n"
        "metadata.entry_points = lambda **_: ()\n"
        "from delayservice.cli import app\n"
        "app()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"],
        check=True,
        capture_output=True,
        text=True,
        env={"TERM": "dumb", "COLUMNS": "80"},
    )
    assert "smoke" in done.stdout
    assert "bench" not in done.stdout


def test_a_login_by_sasl_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kazoo_client, "find_spec", lambda _: None)
    options = ZooKeeper(hosts="localhost:1", auth="sasl", username="a", password=SecretStr("b"))
    with pytest.raises(DelayServiceError, match="extra zookeeper-sasl"):
        kazoo_client.make_client(options, kazoo_client.KazooLog())
