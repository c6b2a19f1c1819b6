"""A delay topic with records in it, and the copies that nodes would have of it.

Records are written to a real topic, read by the service's own reader, and kept in real stores; a
test then spoils copies. The digest topic is written as ``delayservice.replicas.digest_rows`` says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from delayservice.contract.codec import decode_payload
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import PolledRecord as SourceRow
from delayservice.contract.record import RecordReader
from delayservice.engine.cursor import NO_MARK, START_KEY, Cursor, Frame
from delayservice.engine.marking import additions
from delayservice.replicas.commands import Command, decode_message, encode_message, report_on
from delayservice.replicas.digest import HOUR_MS, HourSum, compared_from_ms, frame_hash
from delayservice.replicas.digest_rows import (
    CopyId,
    CutRow,
    Damage,
    DigestRow,
    cut_row,
    hash_text,
    hour_row,
)
from delayservice.store.base import Store
from delayservice.store.folder import ShardFolder, shard_name
from delayservice.store.memory import MemoryStore
from delayservice.store.offline import open_view
from delayservice.store.wheel import Wheel, WheelOptions
from tests.conftest import MakeTopic
from tests.rocks import LoneRocks
from tests.spark.made_history import MadeHistory
from tests.wheels import LoneStore

PARTITIONS = 2
RECORDS = 300
FAR_MS = 10**15
NEAR = 5
"""Records that copies report beside those in their rows: they are due too soon."""
HOURLY = WheelOptions(slot_ms=3_600_000)
WINDOW_MS = 2 * 86_400_000
AGED_MS = 5 * WINDOW_MS
CONTRACTS = Contracts([(0, Contract(roll_window_ms=WINDOW_MS, max_delay_ms=2**40))])

Shape = tuple[list[Frame], int]
"""A copy of a shard: its frames, marks put to them, and S."""
Spoil = Callable[[list[Frame]], list[Frame]]


class World(MadeHistory):
    """Topics with records, and a checkpoint with H at their end.

    Args:
        aged: records below this offset were written long ago, and are settled.
    """

    contracts = CONTRACTS

    def __init__(self, bootstrap: str, make_topic: MakeTopic, aged: int = 0) -> None:
        super().__init__(bootstrap, PARTITIONS, timestamps="CreateTime")
        self.aged = aged
        self.told_max: dict[int, int] = {}
        """Records that a node tells of one hour, by partition; others tell all."""
        self.digests, self.repairs = make_topic("digests"), make_topic("repairs")
        self.start_ms = (self.now_ms // HOUR_MS + 2) * HOUR_MS
        self.producer = Producer({**self.client, "enable.idempotence": True, "linger.ms": 20})
        self.rows = {number: self._records(number) for number in range(PARTITIONS)}
        for number, rows in self.rows.items():
            for _, at_ms, key, value, headers in rows:
                self.write(self.delay, at_ms, headers or [], value, key, number)
        self.cuts: dict[int, int] = {}
        """Offset of the newest checkpoint by slice."""
        self.commit_all(self.cursor)

    def _records(self, partition: int) -> list[SourceRow]:
        """Records over four hours; some bear an id, and some of these are cancelled or replaced."""
        rows: list[SourceRow] = []
        for offset in range(RECORDS):
            due_ms = self.start_ms + offset * 47_431 % (4 * HOUR_MS)
            name = ("delay-id", b"id-%d" % (offset // 10 % 25))
            headers = [("delay-at", b"%d" % due_ms), ("delay-target-topic", b"orders")]
            if offset % 70 == 65:
                headers = [("delay-op", b"cancel"), ("delay-id", b"id-%d" % (offset // 20))]
            elif offset % 10 == 0:
                headers.append(name)
            value = b"value %d of %d" % (offset, partition)
            at_ms = self.now_ms - AGED_MS if offset < self.aged else self.now_ms
            rows.append((offset, at_ms, b"key", value, list(headers)))
        return rows

    @property
    def cursor(self) -> Cursor:
        return Cursor((self.now_ms, 7), RECORDS)

    def commit_all(self, cursor: Cursor) -> None:
        for number in range(PARTITIONS):
            self.cuts[number] = self.commit(number, cursor.key[0], cursor.offset, cursor.key[1])
        self.flush()

    def trim(self, partition: int, first: int) -> None:
        """Retention deletes what is below an offset."""
        place = TopicPartition(self.delay, partition, first)
        for future in self.admin.delete_records([place]).values():
            future.result(30)

    # --- copies --------------------------------------------------------------------------------

    def shape(self, partition: int, stop: int = RECORDS) -> Shape:
        """What a right copy holds of offsets below ``stop``, by the reference store."""
        reader = RecordReader(self.delay, partition, CONTRACTS, [b"secret"])
        entries = reader.read_batch(self.rows[partition][:stop])
        store = MemoryStore()
        store.open()
        for entry in entries:
            added = additions([entry], self.cursor.key, store.latest_unmarked, {})
            store.append(added.frames, added.named, added.marks, entry[0] + 1)
        return list(store.scanner().frames(START_KEY, FAR_MS)), stop

    def pending(self, partition: int) -> list[Frame]:
        """The records that are pending, by the reference store."""
        return [frame for frame in self.shape(partition)[0] if frame[2] == NO_MARK]

    def keep(self, state: Path, partition: int, shape: Shape, kind: str = "wheel") -> ShardFolder:
        """A copy on a disk; where it is."""
        frames, stop = shape
        folder = ShardFolder(str(state / kind / "0"), shard_name(self.topic_id), partition)
        path, place = Path(folder.path), (folder.shard, partition)
        path.parent.mkdir(parents=True, exist_ok=True)
        store: Store = LoneStore(path, HOURLY, place=place)
        if kind == "rocksdb":
            store = LoneRocks(path, place=place)
        store.open()
        plain = [(*frame[:2], NO_MARK, frame[3]) for frame in frames]
        marks = [(b"id", *frame[:3]) for frame in frames if frame[2] != NO_MARK]
        store.append(sorted(plain, key=lambda frame: frame[1]), [], marks, stop)
        store.close()
        return folder

    # --- digests -------------------------------------------------------------------------------

    def publish(
        self,
        node: str,
        partition: int,
        frames: Sequence[Frame],
        *,
        cut: int | None = None,
        cut_ms: int | None = None,
        behind: bool = False,
        damaged: Sequence[Damage] = (),
        life: str = "1",
        lost_hours: int = 0,
        from_ms: int | None = None,
    ) -> None:
        """Digest rows of a copy, as of the world's cursor."""
        place = CopyId(node, self.delay, self.topic_id, partition, life)
        cut = self.cuts[partition] if cut is None else cut
        from_ms = compared_from_ms(self.now_ms) if from_ms is None else from_ms
        hours = hour_rows([frame for frame in frames if frame[0] >= from_ms])
        for hour in hours[lost_hours:]:
            self._row(hour_row(place, cut, hour))
        count = sum(hour.records for hour in hours)
        row = CutRow(
            **place._asdict(),
            cut=cut,
            cut_ms=self.now_ms if cut_ms is None else cut_ms,
            k=self.cursor.key,
            h=self.cursor.offset,
            stored=RECORDS,
            from_ms=from_ms,
            hours=len(hours),
            count=count,
            hash=hash_text(sum(hour.hash for hour in hours) % 2**64),
            pending=count + NEAR,
            behind=behind,
            role="replica",
            damaged=tuple(damaged),
        )
        self._row(cut_row(row))
        self.producer.flush()

    def _row(self, row: DigestRow) -> None:
        self.producer.produce(self.digests, row[1], row[0])

    @contextmanager
    def answering(self, copies: dict[tuple[str, int], list[Frame]]) -> Iterator[list[Command]]:
        """Nodes that tell the records of an hour; the requests that came are yielded."""
        over = threading.Event()
        heard: list[Command] = []
        consumer = Consumer({**self.client, "group.id": "nodes", "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.repairs, 0, 0)])

        def answer() -> None:
            while not over.is_set():
                for message in consumer.consume(100, 0.1):
                    said = decode_message(message.value() or b"") if not message.error() else None
                    if isinstance(said, Command):
                        heard.append(said)
                        self._answer(said, copies.get((said.node, said.partition)))

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield heard
        finally:
            over.set()
            thread.join()
            consumer.close()

    def _answer(self, command: Command, frames: list[Frame] | None) -> None:
        if frames is None:
            return
        rows = [
            (key_ms, offset, mark, hash_text(frame_hash(key_ms, offset, None, payload)))
            for key_ms, offset, mark, payload in frames
            if command.hour_ms <= key_ms < command.hour_ms + HOUR_MS
        ]
        told = rows[: self.told_max.get(command.partition, len(rows))]
        report = report_on(command, "", self.now_ms, told, has_more=len(told) < len(rows))
        self.producer.produce(self.repairs, encode_message(report), command.plan.encode())
        self.producer.flush()


def hour_rows(frames: Sequence[Frame]) -> list[HourSum]:
    """The sums of what is pending, from nothing but the words of ``docs/internals/digests.md``."""
    sums: dict[int, tuple[int, int]] = {}
    for key_ms, offset, mark, payload in frames:
        if mark == NO_MARK:
            meta = decode_payload(payload)[6]
            hashed = frame_hash(key_ms, offset, None if meta is None else meta[0], payload)
            hour_ms = key_ms // HOUR_MS * HOUR_MS
            count, total = sums.get(hour_ms, (0, 0))
            sums[hour_ms] = (count + 1, (total + hashed) % 2**64)
    return [HourSum(hour_ms, *told) for hour_ms, told in sorted(sums.items())]


def without(*offsets: int) -> Spoil:
    """A copy that lost records."""
    return lambda frames: [frame for frame in frames if frame[1] not in offsets]


def with_other_value(offset: int) -> Spoil:
    """A copy with one byte of a payload changed."""
    return lambda frames: [
        (*f[:3], f[3].replace(b"value", b"VALUE")) if f[1] == offset else f for f in frames
    ]


def unmarked(offset: int) -> Spoil:
    """A copy that lost a mark: what was cancelled is pending."""
    return lambda frames: [(*f[:2], NO_MARK, f[3]) if f[1] == offset else f for f in frames]


def spoiled(shape: Shape, *spoils: Spoil) -> Shape:
    """A copy after all of that."""
    frames, stop = shape
    for spoil in spoils:
        frames = spoil(frames)
    return frames, stop


def start_of_file(folder: ShardFolder, number: int) -> int:
    """Start of the slot that a shard has at this place in its wheel, epoch ms."""
    with open_view(Path(folder.path)) as wheel:
        assert isinstance(wheel, Wheel)
        return wheel.shards[folder.shard, folder.partition].starts[number]
