"""Workers that are elected through a real ZooKeeper, without a slice loop behind them."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from structlog.testing import capture_logs
from typer.testing import CliRunner

from delayservice.cli import app
from delayservice.config.cluster import Placement, ZooKeeper
from delayservice.engine.ports import Role
from ha.elected_ownership import ElectedOwnership
from ha.notes import CONTRACT_VERSION_MIN, NodeNote
from ha.ownership import SliceStanding
from ha.placement import SliceFacts
from tests.integration.bench import await_true

SESSION_S = 2
"""Where one is to end, or an answer to fail. Others outlast a moment in which nobody answers."""
Lines = list[MutableMapping[str, Any]]


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def new_root() -> str:
    return f"/test-{uuid.uuid4().hex[:8]}"


def options(hosts: str, root: str = "", **settings: Any) -> ZooKeeper:
    return ZooKeeper(hosts=hosts, root=root or new_root(), **{"session_timeout_s": 10} | settings)


class Worker:
    """A worker that keeps a copy of slice 0, which is always up to date."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        node_id: str = "a",
        instance: str = "",
        version: int = CONTRACT_VERSION_MIN,
    ) -> None:
        me = NodeNote(node_id, instance or f"{node_id}1", 1, ord(node_id), contract_version=version)
        self.ownership = ElectedOwnership(zookeeper, Placement(), me, 0, boot_s=boot_s, alert_s=0.1)
        self.ownership.serve([SliceFacts(0, ord("a"))])
        self.ownership.standing(0, SliceStanding({}, 0))

    @property
    def role(self) -> Role:
        return self.ownership.roles().get(0, Role.REPLICA)

    @property
    def session(self) -> int | None:
        return self.ownership.ensemble.session.session_id

    def await_role(self, role: Role, timeout_s: float = 20) -> None:
        await_true(lambda: self.role is role, f"{role}, not {self.role}", timeout_s)


@contextmanager
def working(
    zookeeper: ZooKeeper,
    node_id: str = "a",
    instance: str = "",
    *,
    role: Role | None = Role.OWNER,
    version: int = CONTRACT_VERSION_MIN,
) -> Iterator[Worker]:
    """A worker that runs, once it has this role."""
    worker = Worker(zookeeper, node_id, instance, version)
    worker.ownership.start()
    try:
        if role is not None:
            worker.await_role(role)
        yield worker
        assert not worker.ownership.has_failed
    finally:
        worker.ownership.close()


@contextmanager
def by_hand(hosts: str, *login: str) -> Iterator[KazooClient]:
    """An operator's client, whose log is nobody's concern."""
    auth = [("digest", ":".join(login))] if login else None
    client = KazooClient(hosts, auth_data=auth, logger=logging.getLogger("operator"))
    client.start(10)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def typed(zookeeper: ZooKeeper, folder: Path, *words: str) -> dict[str, Any]:
    """Type a command of ``delayservice cluster``; return what it says in JSON."""
    settings = zookeeper.model_dump(mode="json", exclude_defaults=True)
    if zookeeper.password is not None:
        settings["password"] = zookeeper.password.get_secret_value()
    lines = ["[node]", 'cluster_secret = "of the cluster, 32 bytes or more"', "[zookeeper]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    config = folder / "delayservice.toml"
    config.write_text("\n".join([*lines, ""]), "utf-8")
    done = CliRunner().invoke(app, ["cluster", *words, "--config", str(config), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def logged(lines: Lines, event: str, *words: str) -> Callable[[], Lines]:
    """Asks for the lines of an event whose reason has these words."""
    return lambda: [
        line
        for line in lines
        if line["event"] == event and all(word in str(line.get("why", "")) for word in words)
    ]


@contextmanager
def captured() -> Iterator[Lines]:
    with capture_logs() as lines:
        yield lines
