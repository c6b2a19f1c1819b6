"""Every setting, its bounds and its default, validated once, before anything starts.

``load`` reads the file, the environment and ``--set``; what it returns never changes afterwards.
A name carries its unit; text may bring a unit of its own (``max_delay_ms = "10y"``).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    ByteSize,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from delayservice.base.errors import SettingsError
from delayservice.config.admin import Admin
from delayservice.config.cluster import Placement, ZooKeeper
from delayservice.config.digests import Digests
from delayservice.config.flow import Disk, Rates
from delayservice.config.kafka import Kafka
from delayservice.config.layers import Layers, Origins, explain, read_layers
from delayservice.config.levels import Levels
from delayservice.config.units import (
    DAY_MS,
    MIB,
    MINUTE_MS,
    YEAR_MS,
    Bytes,
    DurationMs,
    DurationS,
    HeaderBytes,
    Listen,
    ListText,
    Section,
    Topic,
    TopicPattern,
)

_SECRET_CHARS_MIN = 16
_WORKERS_MAX = 4
_ROLL_SPREAD_PARTS = 8
"""Of the roll window: a million records of one second come back over a quarter of an hour with the
default window of two hours."""


def workers_default() -> int:
    """One worker for each core that this process may use, 4 at most: one fills a core at most."""
    return min(len(os.sched_getaffinity(0)), _WORKERS_MAX)


def _content(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise SettingsError(f"node.{name} can't be read: {exc}") from exc


def _secret(path: Path, text: bytes) -> bytes:
    secret = text.strip()
    if len(secret) < _SECRET_CHARS_MIN:
        raise SettingsError(
            f"{path} holds a secret of {len(secret)} bytes; "
            f"the cluster secret needs {_SECRET_CHARS_MIN} at least"
        )
    return secret


class Node(Section):
    """One process tree and what it keeps on disk."""

    node_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")] = Field(
        default_factory=socket.gethostname,
        description="Name of this node, stable over restarts. Default: the host name.",
    )
    broker_id: int | None = Field(
        default=None, ge=0, description="The broker that this node sits beside. Default: none."
    )
    workers: int = Field(
        default_factory=workers_default,
        ge=1,
        le=64,
        description="Worker processes; each owns whole slices, and keeps one core busy at most. "
        "Default: one per core, 4 at most.",
    )
    state_dir: Path = Field(
        default=Path("./delayservice-state"),
        description="Folder of the stores. It can always be rebuilt from Kafka.",
    )
    store: Literal["wheel", "rocksdb", "memory"] = Field(
        default="wheel", description="Where pending records are indexed."
    )
    cluster_secret: SecretStr | None = Field(
        default=None,
        description="Signs the copies that the service writes into its own delay topics. The same "
        "on every node; 16 characters at least.",
    )
    cluster_secret_file: Path | None = Field(
        default=None, description="File with the cluster secret, instead of the secret itself."
    )
    accepted_secrets_file: Path | None = Field(
        default=None,
        description="File with further secrets, one a line, that copies may be signed with as "
        "well: while the cluster secret is replaced.",
    )
    rack: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,128}$")] = Field(
        default="", description="Where the node stands: copies of a slice go to different racks."
    )

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
        """Give the cluster secret, read from its file if need be; None when none is set.

        Raises:
            SettingsError: the file can't be read or its content is too short.
        """
        if self.cluster_secret is not None:
            return self.cluster_secret.get_secret_value().encode()
        if self.cluster_secret_file is None:
            return None
        return _secret(
            self.cluster_secret_file, _content("cluster_secret_file", self.cluster_secret_file)
        )

    def accepted_secrets(self) -> tuple[bytes, ...]:
        """Give the secrets that copies may be signed with besides the cluster secret.

        Raises:
            SettingsError: their file can't be read or one of them is too short.
        """
        path = self.accepted_secrets_file
        if path is None:
            return ()
        lines = _content("accepted_secrets_file", path).splitlines()
        return tuple(_secret(path, line) for line in lines if line.strip())


class Topics(Section):
    """The topics of the service and how missing ones are created."""

    delay: Annotated[tuple[Topic, ...], ListText] = Field(
        default=("delay_topic_any",), max_length=256, description="Delay topics by name."
    )
    discover: bool = Field(
        default=True, description="Serve every topic that matches `pattern` as well."
    )
    pattern: TopicPattern = Field(default="delay_topic_*", description="Names of delay topics.")
    checkpoint: Topic = Field(default="delay_checkpoint", description="Holds the cursors.")
    checkpoint_partitions: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="Partitions of the checkpoint topic when it is created; slices share them. "
        "They can't be changed later.",
    )
    claims: Topic | None = Field(
        default=None,
        description="Holds which worker may write for which slice; one partition. Default: the "
        "checkpoint topic's name and `_claims`.",
    )
    dead_letter: Topic = Field(
        default="delay_dead_letter", description="Holds what can't be delivered."
    )
    outcomes: Topic = Field(
        default="delay_outcomes", description="Holds cancelled, expired and the like."
    )
    digests: Topic = Field(
        default="delay_digests", description="Holds what each node's copies have pending, in sums."
    )
    repairs: Topic = Field(
        default="delay_repairs", description="Holds what copies are asked to do, and the answers."
    )
    audit: Topic = Field(
        default="delay_audit", description="Holds what audits and comparisons of copies found."
    )
    pauses: Topic = Field(
        default="delay_pauses", description="Holds which targets and delay topics are paused."
    )
    create: bool = Field(
        default=True,
        description="Create what is missing at start; later, topics of dead letters and outcomes.",
    )
    partitions: int = Field(
        default=4, ge=1, le=1000, description="Partitions of created topics: slices."
    )
    replication_factor: int = Field(
        default=-1, ge=-1, le=15, description="Of created topics; -1 is the broker's default."
    )
    refresh_s: DurationS = Field(
        default=5, ge=1, le=3600, description="How often new topics and partitions are looked for."
    )

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
    def claims_topic(self) -> str:
        """The topic of the claims."""
        return self.claims or f"{self.checkpoint}_claims"

    @property
    def own(self) -> tuple[str, ...]:
        """The service's own topics, which are never delay topics."""
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


class TargetRules(Section):
    """Where records of one delay topic may go. Nothing is allowed unless it is listed."""

    allow: Annotated[tuple[TopicPattern, ...], ListText] = Field(
        default=(), max_length=1000, description="Patterns of allowed target topics (`*` and `?`)."
    )
    default_target: Topic | None = Field(
        default=None, description="Target of records without `delay-target-topic`. Default: none."
    )


class Delivery(Section):
    """What a due record meets."""

    mode: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="At least once is faster and may double a record in a crash.",
    )
    partitioner: Literal[
        "murmur2_random",
        "murmur2",
        "consistent_random",
        "consistent",
        "fnv1a_random",
        "fnv1a",
        "random",
    ] = Field(default="murmur2_random", description="As Java producers do, unless set otherwise.")
    transaction_interval_ms_min: DurationMs = Field(
        default=10,
        ge=0,
        le=MINUTE_MS,
        description="Shortest time between two transactions of a worker: under exactly_once it "
        "bounds the median lateness from below. A transaction takes 2 to 4 ms of a broker's core.",
    )
    transaction_interval_ms_max: DurationMs = Field(
        default=100,
        ge=1,
        le=MINUTE_MS,
        description="Longest time; it is adapted to load in between. Under at_least_once, where a "
        "transaction carries cursors only, always this.",
    )
    transactions_per_s_max: int = Field(
        default=200,
        ge=1,
        le=100_000,
        description="Transactions of the whole node per second; its workers share them.",
    )
    batch_records_max: int = Field(
        default=20_000,
        ge=1,
        le=1_000_000,
        description="Records of one transaction; the shards that have some due share it.",
    )
    batch_bytes_max: Bytes = Field(
        default=ByteSize(32 * MIB), description="Bytes of one transaction, about."
    )
    max_delay_ms: DurationMs = Field(
        default=10 * YEAR_MS,
        ge=1_000,
        le=100 * YEAR_MS,
        description="The longest delay that is accepted.",
    )
    clamp: bool = Field(
        default=False, description="Shorten a longer delay to `max_delay_ms` instead of refusing."
    )
    past_due: Literal["deliver", "dead-letter"] = Field(
        default="deliver", description="A record that was due before it was written."
    )
    header_bytes_max: HeaderBytes = Field(
        default=ByteSize(4_096), description="Longest value of one header of the contract."
    )
    id_bytes_max: HeaderBytes = Field(default=ByteSize(512), description="Longest `delay-id`.")
    id_partitions: int = Field(
        default=0,
        ge=0,
        description="Records with a `delay-id` are sent to partition murmur2(id) modulo this of "
        "their delay topic, so that a cancel by any client finds its record; 0: they stay where "
        "they lie. Set it to the partitions of the delay topics; it can't be changed afterwards.",
    )
    roll_window_ms: DurationMs = Field(
        default=0,
        ge=0,
        le=366 * DAY_MS,
        description="A record due later than this is rolled forward in its delay topic. "
        "0: as wide as the wheel.",
    )
    park_delays_ms: Annotated[
        tuple[Annotated[DurationMs, Field(ge=1, le=YEAR_MS)], ...], ListText
    ] = Field(
        default=(1_000, 5_000, 30_000, 2 * MINUTE_MS, 10 * MINUTE_MS),
        min_length=1,
        max_length=100,
        description="Waits between attempts at a target that fails; after the last: dead letter.",
    )
    missing_target: Literal["park", "dead-letter"] = Field(
        default="park",
        description="A record whose target does not exist: tried again after `park_delays_ms`, or "
        "a dead letter at once.",
    )
    held_ms: DurationMs = Field(
        default=MINUTE_MS,
        ge=1_000,
        le=60 * MINUTE_MS,
        description="A record whose target is paused is put off for so long, and looked at again; "
        "as the pause lasts, for up to ten times as long.",
    )
    slot_records_max: int = Field(
        default=0,
        ge=0,
        le=100_000_000,
        description="Records of a shard due in one second that are delivered in it; 0: any number.",
    )
    slot_policy: Literal["accept", "spread", "dead-letter"] = Field(
        default="accept",
        description="What becomes of more: counted, moved to later seconds, or dead letters.",
    )
    clock_tolerance_ms: DurationMs = Field(
        default=500, ge=10, le=MINUTE_MS, description="A clock that is off by more stops delivery."
    )

    @model_validator(mode="after")
    def _interval_in_order(self) -> Self:
        if self.transaction_interval_ms_min > self.transaction_interval_ms_max:
            raise ValueError("transaction_interval_ms_min is above transaction_interval_ms_max")
        if self.id_bytes_max > self.header_bytes_max:
            raise ValueError("id_bytes_max is above header_bytes_max")
        return self


class Wheel(Section):
    """The file time wheel: an append-only file for each slot of due times, for all shards of a
    worker. Its bounds are those of a worker, whatever the number of its shards.
    """

    slots: int = Field(
        default=720,
        ge=60,
        le=100_000,
        description="Slots of the wheel; times `slot_ms`, this is how far it reaches.",
    )
    slot_ms: DurationMs = Field(
        default=10_000,
        ge=1_000,
        le=DAY_MS,
        description="Width of a slot; delivery is exact to the millisecond at any width. For a "
        "wheel of days, use wider slots (14 d: 2,016 of 10 min). A change rebuilds the wheel "
        "from Kafka.",
    )
    buffer_bytes_max: Bytes = Field(
        default=ByteSize(32 * MIB),
        description="Appended bytes a worker may hold before it writes files.",
    )
    near_bytes_max: Bytes = Field(
        default=ByteSize(64 * MIB),
        description="Bytes of the next slots that a worker keeps in memory.",
    )
    sync_bytes: Bytes = Field(
        default=ByteSize(32 * MIB), description="Bytes of log to read again after a crash, about."
    )
    open_files_max: int = Field(
        default=128, ge=4, le=65_536, description="Open slot files of a worker."
    )

    @property
    def window_ms(self) -> int:
        """Span of the wheel, milliseconds."""
        return self.slots * self.slot_ms


class RocksDb(Section):
    """The RocksDB store."""

    write_buffer_bytes: Bytes = Field(
        default=ByteSize(32 * MIB), description="Memory table of a worker; two may exist."
    )
    block_cache_bytes: Bytes = Field(
        default=ByteSize(32 * MIB), description="Read cache of a worker."
    )
    sync_bytes: Bytes = Field(
        default=ByteSize(64 * MIB), description="Bytes of log to read again after a crash, at most."
    )
    compression: Literal["none", "snappy", "lz4", "zstd"] = Field(
        default="lz4", description="Of data on disk."
    )


class Outage(Section):
    """How long everything may stand still without loss."""

    allowance_ms: DurationMs = Field(
        default=DAY_MS,
        ge=0,
        le=366 * DAY_MS,
        description="Delay topics must retain records for the roll window and this much longer.",
    )


class Metrics(Section):
    """The HTTP server of metrics and status."""

    listen: Listen = Field(
        default="127.0.0.1:9464",
        description="`host:port` of /metrics and /status; port 0 is any, empty is off. "
        "It has no password: open it to trusted networks only.",
    )


class Log(Section):
    """Log lines go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least level that is written."
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="auto: colours on a terminal, JSON lines elsewhere."
    )


class Settings(Section):
    """The whole configuration."""

    node: Node = Node()
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
    wheel: Wheel = Wheel()
    rocksdb: RocksDb = RocksDb()
    outage: Outage = Outage()
    metrics: Metrics = Metrics()
    admin: Admin = Admin()
    log: Log = Log()

    @model_validator(mode="after")
    def _wheel_holds_the_window(self) -> Self:
        if self.node.store == "wheel" and self.roll_window_ms > self.wheel.window_ms:
            raise ValueError(
                f"delivery.roll_window_ms is {self.roll_window_ms} but wheel.slots times "
                f"wheel.slot_ms covers only {self.wheel.window_ms} ms"
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
        """Return whether this node owns every slice, without an election."""
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
        """Longest time ahead that a record may be due without being rolled, milliseconds."""
        return self.delivery.roll_window_ms or self.wheel.window_ms

    @property
    def roll_spread_ms(self) -> int:
        """Time by which a record may be rolled earlier, so that a burst is not rolled at once."""
        return self.roll_window_ms // _ROLL_SPREAD_PARTS

    def targets_for(self, delay_topic: str) -> TargetRules:
        """Choose one topic's rules: its own table, or ``[targets.default]``, or nothing allowed."""
        return self.targets.get(delay_topic) or self.targets.get("default") or TargetRules()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where each value came from (``Origins.of``)."""

    settings: Settings
    origins: Origins


def load(config: Path | None, sets: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the file, overridden by the environment, overridden by ``sets``.

    Raises:
        SettingsError: the file can't be read, a name is unknown, a value is out of bounds or two
            contradict each other; every finding is one line with its place.
    """
    return load_with_origins(config, sets, environ).settings


def load_with_origins(
    config: Path | None, sets: Sequence[str], environ: Mapping[str, str]
) -> Loaded:
    """Load as ``load`` does, with the origin of every value."""
    layers: Layers = read_layers(config, sets, environ, Settings)
    try:
        return Loaded(Settings.model_validate(layers.tree), layers.origins)
    except ValidationError as exc:
        raise SettingsError(explain(exc, layers, Settings)) from None
