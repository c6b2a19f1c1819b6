"""Who may write what the nodes write, over what connections, and what an operator reads of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl_credential

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import free_ports
from delayservice.base.errors import DelayServiceError
from delayservice.config.cluster import ZooKeeper
from delayservice.engine.ports import Role
from ha.operator_commands import set_rights
from tests.integration.bench import await_true
from tests.integration.electing import (
    Lines,
    by_hand,
    captured,
    logged,
    new_root,
    options,
    typed,
    working,
)
from tests.integration.tls_front import TlsFront, make_authority, make_certificate

USER = "service"
PASSWORD = "s3cr3t-Pa55word"  # noqa: S105  # must never be seen anywhere
WRONG = "wr0ng-Pa55word"
NEXT = "service2"
NEXT_PASSWORD = "n3xt-Pa55word"  # noqa: S105  # must never be seen either
JAVA_OPTIONS = "JDK_JAVA_OPTIONS"
LOGINS = f"""
Server {{
    org.apache.zookeeper.server.auth.DigestLoginModule required user_{USER}="{PASSWORD}"
        user_{NEXT}="{NEXT_PASSWORD}";
}};
"""
SASL = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[EmbeddedCluster]:
    """ZooKeeper alone, which takes logins by SASL, digest, and none at all."""
    logins = folder / "logins"
    logins.write_text(LOGINS, encoding="ascii")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(JAVA_OPTIONS, f"-Djava.security.auth.login.config={logins}")
        with EmbeddedCluster(brokers=0, zookeeper_properties=SASL) as running:
            yield running


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What is logged at any level, by us and by kazoo, must show no password."""
    heard = _Heard()
    kazoo = logging.getLogger("kazoo")
    kazoo.addHandler(heard)
    kazoo.setLevel(1)
    with captured() as seen:
        yield seen
    kazoo.removeHandler(heard)
    kazoo.setLevel(logging.NOTSET)
    everything = repr(seen) + repr(heard.texts)
    assert PASSWORD not in everything
    assert WRONG not in everything
    assert NEXT_PASSWORD not in everything
    assert "passwd" not in everything


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(1)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def login(auth: str, password: str = PASSWORD) -> dict[str, Any]:
    return {"auth": auth, "username": USER, "password": password}


@pytest.mark.parametrize("auth", ["digest", "sasl"])
def test_nobody_else_may_touch_what_the_nodes_write(
    cluster: EmbeddedCluster, lines: Lines, auth: str
) -> None:
    root = new_root()
    with working(options(cluster.zookeeper, root, **login(auth))) as worker:
        for other in [(), ("other", PASSWORD), (USER, WRONG)]:
            with by_hand(cluster.zookeeper, *other) as operator:
                for path in ("slices/0/owner", "slices/0/epoch", "live/a:0", "nodes/a"):
                    with pytest.raises(NoAuthError):
                        operator.set(f"{root}/{path}", b"{}")
                    with pytest.raises(NoAuthError):
                        operator.delete(f"{root}/{path}")
                with pytest.raises(NoAuthError):
                    operator.create(f"{root}/live/b:0", b"{}")
        assert worker.ownership.confirm_all([0])
    assert not logged(lines, "zookeeper_refuses")()


def names(auth: str, user: str, password: str) -> str:
    """How ``zookeeper.accepted`` names a user."""
    return user if auth == "sasl" else str(make_digest_acl_credential(user, password))


def type_rights(settings: ZooKeeper, folder: Path) -> int:
    """Return how many ZooKeeper nodes ``delayservice cluster rights`` says it has set."""
    told = typed(settings, folder, "rights")
    assert told["root"] == settings.root
    return int(told["nodes"])


@pytest.mark.parametrize("auth", ["digest", "sasl"])
def test_user_and_password_are_replaced_while_the_slice_is_owned(
    cluster: EmbeddedCluster, lines: Lines, auth: str, tmp_path: Path
) -> None:
    root = new_root()

    def having(user: str, password: str, *accepted: tuple[str, str]) -> ZooKeeper:
        others = tuple(names(auth, *one) for one in accepted)
        return options(
            cluster.zookeeper, root, auth=auth, username=user, password=password, accepted=others
        )

    old, new = (USER, PASSWORD), (NEXT, NEXT_PASSWORD)
    with working(having(*old)), working(having(*new, old), "b", role=None):
        await_true(logged(lines, "zookeeper_refuses"), "nobody accepts the new one yet")
    with working(having(*old, new)) as first:
        assert type_rights(having(*old, new), tmp_path) > 5
        with working(having(*new, old), "b", role=Role.REPLICA) as second:
            assert first.ownership.confirm_all([0])
            first.ownership.close()
            second.await_role(Role.OWNER)
            assert type_rights(having(*new), tmp_path) > 5
            assert second.ownership.confirm_all([0])
            with pytest.raises(DelayServiceError, match="does not let"):
                set_rights(having(*old))
    with working(having(*new), "c") as third:
        assert third.ownership.confirm_all([0])


def test_rights_are_not_set_where_no_ensemble_answers() -> None:
    (port,) = free_ports(1)
    with pytest.raises(DelayServiceError, match=f"{port} was not reached in 15 s"):
        set_rights(options(f"127.0.0.1:{port}"))


def test_a_wrong_digest_password_is_named_and_retried_in_peace(
    cluster: EmbeddedCluster, lines: Lines
) -> None:
    root = new_root()
    with (
        working(options(cluster.zookeeper, root, **login("digest"))),
        working(options(cluster.zookeeper, root, **login("digest", WRONG)), "b", role=None) as bad,
    ):
        await_true(logged(lines, "zookeeper_refuses", "NoAuthError"), "it says so")
        await_true(lambda: tried(lines, "ensemble_not_reached") >= 3, "it is tried again")
        assert bad.role is Role.REPLICA
    (line,) = logged(lines, "zookeeper_refuses")()
    assert line["log_level"] == "warning"
    assert "password" in line["hint"]


def test_a_wrong_sasl_password_is_named_and_retried_in_peace(
    cluster: EmbeddedCluster, lines: Lines
) -> None:
    zookeeper = options(cluster.zookeeper, **login("sasl", WRONG))
    with working(zookeeper, role=None) as worker:
        started_s = time.monotonic()
        await_true(logged(lines, "waiting_for_zookeeper", "AUTH_FAILED"), "it says so")
        await_true(lambda: tried(lines, "zookeeper_client") >= 3, "it is tried again")
        assert time.monotonic() - started_s > 3, "in a tight loop"
        assert worker.role is Role.REPLICA
    assert len(logged(lines, "waiting_for_zookeeper")()) == 1
    assert "password" in logged(lines, "waiting_for_zookeeper")()[0]["hint"]
    assert not logged(lines, "zookeeper_connected")()


def tried(lines: Lines, event: str) -> int:
    return len(logged(lines, event)())


@pytest.fixture(scope="module")
def authority(folder: Path) -> Path:
    return make_authority(folder / "trusted")


def over_tls(front: TlsFront, ca: Path | None) -> ZooKeeper:
    return options(f"localhost:{front.port}", tls=True, tls_ca_file=ca)


def front_for(cluster: EmbeddedCluster, authority: Path, host: str) -> TlsFront:
    address, _, port = cluster.zookeeper.partition(":")
    return TlsFront(make_certificate(authority.parent, host), address, int(port))


def test_a_server_with_the_right_name_by_a_trusted_authority_is_spoken_to(
    cluster: EmbeddedCluster, authority: Path, lines: Lines
) -> None:
    with (
        front_for(cluster, authority, "localhost") as front,
        working(over_tls(front, authority)) as worker,
    ):
        assert worker.ownership.confirm_all([0])
    assert not logged(lines, "waiting_for_zookeeper")()


def test_a_server_of_another_name_is_refused(
    cluster: EmbeddedCluster, authority: Path, lines: Lines
) -> None:
    with (
        front_for(cluster, authority, "elsewhere") as front,
        working(over_tls(front, authority), role=None) as worker,
    ):
        await_true(logged(lines, "waiting_for_zookeeper", "Hostname mismatch"), "it says so")
        assert not worker.ownership.ensemble.session.is_connected


@pytest.mark.parametrize("trust", ["the system's", "another"])
def test_a_server_by_an_authority_that_is_not_trusted_is_refused(
    cluster: EmbeddedCluster, authority: Path, folder: Path, lines: Lines, trust: str
) -> None:
    ca = make_authority(folder / "another") if trust == "another" else None
    with (
        front_for(cluster, authority, "localhost") as front,
        working(over_tls(front, ca), role=None) as worker,
    ):
        await_true(
            logged(lines, "waiting_for_zookeeper", "certificate verify failed"), "it says so"
        )
        assert not worker.ownership.ensemble.session.is_connected


def test_a_server_that_speaks_no_tls_is_refused(cluster: EmbeddedCluster, lines: Lines) -> None:
    with working(options(cluster.zookeeper, tls=True), role=None) as worker:
        await_true(logged(lines, "waiting_for_zookeeper"), "it says so")
        assert not worker.ownership.ensemble.session.is_connected
