"""Every setting, its bounds and its default, validated once, before anything starts.

``load`` reads the file, the environment and ``--set``; the settings that it returns never change.
The name of a setting carries its unit; a text may give another unit (``max_delay_ms = "10y"``).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from delayservice.base.errors import SettingsError
from delayservice.config.admin import Admin
from delayservice.config.cluster import Placement, ZooKeeper
from delayservice.config.delivery import INTERVAL_MS_MAX, Delivery, Levels, Rates, TargetRules
from delayservice.config.kafka import Kafka
from delayservice.config.layers import Layers, Origins, explain, read_layers
from delayservice.config.stores import Digests, Disk, RocksDb, WheelSettings
from delayservice.config.units import (
    DAY_MS,
    DurationMs,
    DurationS,
    Listen,
    ListText,
    Section,
    Topic,
    TopicPattern,
    names_of,
    read_secret_bytes,
)

_SECRET_CHARS_MIN = 16
_WORKERS_MAX = 4
# Divisor of the roll window that gives ``roll_spread_ms``: with the default window of two hours, a
# million records due in one second are rolled over a quarter of an hour.
_ROLL_SPREAD_PARTS = 8


def workers_default() -> int:
    return min(len(os.sched_getaffinity(0)), _WORKERS_MAX)


def secret_of(path: Path, text: bytes) -> bytes:
    secret = text.strip()
    if len(secret) < _SECRET_CHARS_MIN:
        raise SettingsError(
            f"{path} holds a secret of {len(secret)} bytes, and the cluster secret needs "
            f"{_SECRET_CHARS_MIN} at least: put the whole secret there again"
        )
    return secret


class NodeSettings(Section):
    """One node: its name, its worker processes and its folder on disk."""

    node_id: Annotated[str, names_of(1, 128)] = Field(default_factory=socket.gethostname)
    """Unique name of this node, kept over restarts. Default: the host name."""
    broker_id: int | None = Field(default=None, ge=0)
    """Id of the broker on the same host: the node is preferred for slices whose partitions it holds
    or leads.
    """
    workers: int = Field(default_factory=workers_default, ge=1, le=64)
    """Worker processes, each for whole slices, with one core at most. Default: one per core, 4 at
    most.
    """
    state_dir: Path = Path("./delayservice-state")
    """Folder of the stores."""
    store: Literal["wheel", "rocksdb", "memory"] = "wheel"
    """Store of pending records. `memory` is rebuilt from Kafka at each start."""
    cluster_secret: SecretStr | None = None
    """Secret that signs requeued records: 16 characters at least, the same on every node. Required
    with ZooKeeper; a single node makes its own.
    """
    cluster_secret_file: Path | None = None
    """File that holds `cluster_secret`."""
    accepted_secrets_file: Path | None = None
    """File of further accepted secrets, one per line, while `cluster_secret` is replaced."""
    rack: Annotated[str, names_of(0, 128)] = ""
    """Rack or zone: copies of a slice go to different ones. Empty: one of its own."""

    @field_validator("cluster_secret")
    @classmethod
    def _long_enough(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value()) < _SECRET_CHARS_MIN:
            raise ValueError(f"the secret needs {_SECRET_CHARS_MIN} characters at least")
        return secret

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if self.cluster_secret is not None and self.cluster_secret_file is not None:
            raise ValueError("set cluster_secret or cluster_secret_file, not both")
        return self

    def secret_bytes(self) -> bytes | None:
        if self.cluster_secret is not None:
            return self.cluster_secret.get_secret_value().encode()
        if self.cluster_secret_file is None:
            return None
        return secret_of(
            self.cluster_secret_file,
            read_secret_bytes("node.cluster_secret_file", self.cluster_secret_file),
        )

    def accepted_secrets(self) -> tuple[bytes, ...]:
        """Return the secrets, besides the cluster secret, whose signatures are accepted."""
        path = self.accepted_secrets_file
        if path is None:
            return ()
        lines = read_secret_bytes("node.accepted_secrets_file", path).splitlines()
        return tuple(secret_of(path, line) for line in lines if line.strip())


class Topics(Section):
    """Topics of the service, and how missing ones are created."""

    delay: Annotated[tuple[Topic, ...], ListText] = Field(
        default=("delay_topic_any",), max_length=256
    )
    """Names of delay topics."""
    discover: bool = True
    """Also serve every topic that matches `pattern`."""
    pattern: TopicPattern = "delay_topic_*"
    """Pattern of delay topics (`*` and `?`), served as soon as they exist."""
    checkpoint: Topic = "delay_checkpoint"
    """Topic of the cursors."""
    checkpoint_partitions: int = Field(default=4, ge=1, le=1000)
    """Partitions of the checkpoint topic when it is created; fixed afterwards."""
    claims: Topic | None = None
    """Topic of the claims: which worker may write for a slice. Default: name of the checkpoint
    topic and `_claims`.
    """
    dead_letter: Topic = "delay_dead_letter"
    """Topic of records that can't be delivered."""
    outcomes: Topic = "delay_outcomes"
    """Topic of outcomes."""
    digests: Topic = "delay_digests"
    """Topic of the digests."""
    repairs: Topic = "delay_repairs"
    """Topic of repair orders for copies, and of the answers."""
    audit: Topic = "delay_audit"
    """Topic of the results of audits and comparisons of copies."""
    pauses: Topic = "delay_pauses"
    """Topic of paused targets and delay topics."""
    create: bool = True
    """Create missing topics. `false`: a missing topic is an error."""
    partitions: int = Field(default=4, ge=1, le=1000)
    """Partitions of delay topics that the service creates: slices."""
    replication_factor: int = Field(default=-1, ge=-1, le=15)
    """Replicas of created topics. -1: the broker's default."""
    refresh_s: DurationS = Field(default=5, ge=1, le=3600)
    """Seconds between two checks for new topics and partitions."""

    @model_validator(mode="after")
    def _all_differ(self) -> Self:
        names = [*self.delay, *self.own]
        doubled = {name for name in names if names.count(name) > 1}
        if doubled:
            raise ValueError(f"one topic can't have two roles: {', '.join(sorted(doubled))}")
        if self.replication_factor == 0:
            raise ValueError("replication_factor is -1 (the broker's default) or 1 and above")
        return self

    @property
    def first_delay(self) -> str:
        # Of records and controls that name no delay topic. Raises ``SettingsError``.
        if not self.delay:
            raise SettingsError("topics.delay is empty: name the delay topic")
        return self.delay[0]

    @property
    def claims_topic(self) -> str:
        return self.claims or f"{self.checkpoint}_claims"

    @property
    def own(self) -> tuple[str, ...]:
        # They are never delay topics.
        return (
            self.checkpoint,
            self.claims_topic,
            self.dead_letter,
            self.outcomes,
            self.digests,
            self.repairs,
            self.audit,
            self.pauses,
        )


class Outage(Section):
    """Planned length of an outage."""

    allowance_ms: DurationMs = Field(default=DAY_MS, ge=0, le=366 * DAY_MS)
    """Longest outage without loss: delay topics must retain records for the roll window plus this
    time.
    """


class Metrics(Section):
    """HTTP server of metrics and status."""

    listen: Listen = "127.0.0.1:9464"
    """`host:port` of /metrics and /status, without a password. Port 0: any free port. Empty: off.
    """


class LogSettings(Section):
    """Log lines on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written."""
    format: Literal["auto", "console", "json"] = "auto"
    """`auto`: console (text with colours) on a terminal, else JSON, one object per line."""


class Settings(Section):
    """The whole configuration."""

    node: NodeSettings = NodeSettings()
    kafka: Kafka = Kafka()
    zookeeper: ZooKeeper = ZooKeeper()
    placement: Placement = Placement()
    topics: Topics = Topics()
    levels: Levels = Levels()
    targets: dict[str, TargetRules] = Field(default_factory=dict, max_length=1000)
    delivery: Delivery = Delivery()
    rates: Rates = Rates()
    disk: Disk = Disk()
    digests: Digests = Digests()
    wheel: WheelSettings = WheelSettings()
    rocksdb: RocksDb = RocksDb()
    outage: Outage = Outage()
    metrics: Metrics = Metrics()
    admin: Admin = Admin()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _wheel_holds_the_window(self) -> Self:
        if self.node.store == "wheel" and self.roll_window_ms > self.wheel.window_ms:
            raise ValueError(
                f"delivery.roll_window_ms is {self.roll_window_ms} but wheel.slots times "
                f"wheel.slot_ms covers only {self.wheel.window_ms} ms"
            )
        return self

    @model_validator(mode="after")
    def _workers_commit_in_time(self) -> Self:
        rate, workers = self.delivery.transactions_per_s_max, self.node.workers
        if workers * 1_000 > rate * INTERVAL_MS_MAX:
            raise ValueError(
                f"delivery.transactions_per_s_max is {rate}, shared by {workers} workers: raise it "
                f"so that each has a transaction every {INTERVAL_MS_MAX // 1_000} s at least"
            )
        return self

    @model_validator(mode="after")
    def _levels_have_topics_of_their_own(self) -> Self:
        topics = self.topics
        taken = {*topics.delay, *topics.own}
        both = sorted(taken & self.levels.by_topic.keys())
        if both:
            raise ValueError(
                f"{', '.join(both)} would be a level topic and have another role: change [levels], "
                "or take it out of [topics]"
            )
        return self

    @property
    def standalone(self) -> bool:
        # Without an election, this node owns every slice.
        return not self.zookeeper.hosts

    @model_validator(mode="after")
    def _nodes_share_a_secret(self) -> Self:
        node = self.node
        if not self.standalone and node.cluster_secret is None and node.cluster_secret_file is None:
            raise ValueError(
                "zookeeper.hosts is set, so node.cluster_secret or node.cluster_secret_file must "
                "be: nodes with different secrets take each other's copies for forgeries"
            )
        return self

    @property
    def roll_window_ms(self) -> int:
        # A record that waits longer is requeued.
        return self.delivery.roll_window_ms or self.wheel.window_ms

    @property
    def roll_spread_ms(self) -> int:
        # Thus records that are due together are not rolled together.
        return self.roll_window_ms // _ROLL_SPREAD_PARTS

    def targets_for(self, delay_topic: str) -> TargetRules:
        return self.targets.get(delay_topic) or self.targets.get("default") or TargetRules()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Validated settings, and the place where each value was written."""

    settings: Settings
    origins: Origins


def load(config: Path | None, sets: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return validated settings: the file ``config`` (TOML), overridden by the environment
    (``DELAYSERVICE_…``), then by ``sets`` (``section.key=value``). The message of a
    ``SettingsError`` has a line per error, with its place.
    """
    return load_with_origins(config, sets, environ).settings


def load_with_origins(
    config: Path | None, sets: Sequence[str], environ: Mapping[str, str]
) -> Loaded:
    layers: Layers = read_layers(config, sets, environ, Settings)
    try:
        return Loaded(Settings.model_validate(layers.tree), layers.origins)
    except ValidationError as exc:
        raise SettingsError(explain(exc, layers, Settings)) from None
