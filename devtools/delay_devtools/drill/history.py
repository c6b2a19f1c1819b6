"""History of a drill: topics as some days of producers and of a delay service leave them.

Time passes in steps. In each, producers write, some of them in transactions, one of which is
aborted; then the owner advances H past these records and settles the due ones: in a transaction
with its checkpoint, after one that it aborts. Where slices share a partition of the checkpoint
topic, one of them commits often at the end. The last records are beyond every checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from delay_devtools.drill.scenes import TURN
from delay_devtools.drill.service import (
    ROLL_WINDOW_MS,
    SCENE,
    ModelShard,
    ModelStep,
    OutputRecord,
    Record,
    output_of,
)
from delay_devtools.drill.stage import LATENESS_MS, TAIL, Defect, Scene, Scenery, Stage
from delay_devtools.drill.users import Request, TopicNames, Users
from delay_devtools.drill.wire import DAY_MS, HOUR_MS, MAX_DELAY_MS, Headers, contract, to_json
from delay_devtools.drill.writing import CountedWriter, Ends

STEPS: Final = 36
SPAN_MS: Final = 3 * DAY_MS
TAIL_MS: Final = 120_000
_ABORTED: Final = 2
# Number of settled records of each step, the first ones, whose deliveries the service writes in the
# aborted transaction as well.
_SAMPLE: Final = 20
# Number of checkpoints of the first slice at the end, so that those of other slices in the same
# partition are far behind in the log.
_BUSY: Final = 1_000


class Theatre:
    """Runner of scenes. ``plan``: names of the scenes that begin in each step, or at the end
    (``TAIL``); ``pinned``: scenes that are played in the first shard.
    """

    def __init__(
        self,
        shared: Scenery,
        plan: Mapping[int, Sequence[str]],
        scenes: Mapping[str, Scene],
        pinned: Iterable[str] = (),
    ) -> None:
        self.defects: list[Defect] = []
        self._shared = shared
        self._plan = plan
        self._scenes = scenes
        self._pinned = set(pinned)
        self._played: list[tuple[str, Stage, Iterator[None]]] = []
        self._number = 0

    @property
    def waiting(self) -> Counter[str]:
        return Counter(name for name, _, _ in self._played)

    def begin(self, step: int, start_ms: int, write: Callable[[OutputRecord], int]) -> None:
        for name in self._plan.get(step, ()):
            count = self._shared.names.partitions
            partition = 0 if name in self._pinned else self._shared.rng.randrange(count)
            stage = Stage(self._shared, partition, start_ms, self._number)
            self._number += 1
            self._go(name, stage, self._scenes[name](stage), write)

    def go_on(self, stop_ms: int, write: Callable[[OutputRecord], int]) -> None:
        played, self._played = self._played, []
        for name, stage, scene in played:
            if stage.is_passed(stop_ms):
                stage.settle()
                self._go(name, stage, scene, write)
            else:
                self._played.append((name, stage, scene))

    def finish(self, start_ms: int, write: Callable[[OutputRecord], int]) -> None:
        # No checkpoint covers these records, so no scene waits.
        self.begin(TAIL, start_ms, write)
        for name, stage, scene in self._played[:]:
            if name in self._plan.get(TAIL, ()):
                self._played.remove((name, stage, scene))
                self._go(name, stage, scene, write)

    def _go(
        self, name: str, stage: Stage, scene: Iterator[None], write: Callable[[OutputRecord], int]
    ) -> None:
        stage.write = write
        try:
            next(scene)
        except StopIteration:
            if stage.findings:
                self.defects.append(Defect(name, ("topics",), tuple(stage.findings)))
            return
        self._played.append((name, stage, scene))


@dataclass(slots=True)
class Life:
    """State of the history: ``beyond`` are schedules with offsets from H on, ``gone`` is the offset
    in the first shard below which retention deletes, ``turns`` the first offset under the second
    contract.
    """

    names: TopicNames
    topic_id: str
    shards: list[ModelShard]
    now_ms: int
    ends: Ends
    beyond: list[list[Record]] = field(default_factory=list)
    checkpoints: dict[int, int] = field(default_factory=dict)
    records: int = 0
    gone: int = 0
    turns: dict[int, int] = field(default_factory=dict)


class HistoryWriter:
    """Writer of the history. Producers and scenes write with ``plain``, without transactions."""

    def __init__(
        self,
        life: Life,
        users: Users,
        theatre: Theatre,
        plain: CountedWriter,
        producer: CountedWriter,
        owner: CountedWriter,
    ) -> None:
        self._life = life
        self._names = life.names
        self._users = users
        self._theatre = theatre
        self._plain = plain
        self._producer = producer
        self._owner = owner
        # Records with offsets from H on and the times of their append in epoch milliseconds, by
        # partition.
        self._log: list[list[tuple[Record, int]]] = [[] for _ in life.shards]
        self._commit = 0

    def write(
        self,
        records: int,
        tell: Callable[[int], None],
        pause: Callable[[int], None] = lambda _: None,
    ) -> None:
        start_ms = self._life.now_ms - TAIL_MS - SPAN_MS
        each, tail = divmod(records, STEPS + 1)
        for number in range(STEPS):
            stop_ms = start_ms + SPAN_MS // STEPS
            self._theatre.begin(number, start_ms, partial(self._writes, self._plain))
            self._produce(self._requests(each, start_ms, stop_ms))
            self._settle(stop_ms)
            if not number:
                self._life.gone = self._life.ends.next.get((self._names.delay, 0), 0)
            if number == TURN:
                places = [shard.place for shard in self._life.shards]
                self._life.turns = {
                    place[1]: self._life.ends.next.get(place, 0) for place in places
                }
            start_ms = stop_ms
            tell((number + 1) * each)
            pause(number)
        if self._names.checkpoint_partitions:
            self._be_busy()
        self._bystanders()
        self._produce(self._requests(each + tail, start_ms, self._life.now_ms))
        self._theatre.finish(start_ms, partial(self._writes, self._plain))
        self._plain.flush()
        self._leave()
        tell(records)

    def _requests(self, count: int, start_ms: int, stop_ms: int) -> list[Request]:
        span = stop_ms - start_ms
        return [self._users.request(start_ms + span * n // count) for n in range(count)]

    # --- producers -----------------------------------------------------------------------------

    def _produce(self, requests: Sequence[Request]) -> None:
        # Half without a transaction, half in one; between them a transaction that is aborted.
        half = len(requests) // 2
        self._append(self._plain, requests[:half])
        self._plain.flush()
        if not requests:
            return
        at_ms = requests[half].written_ms
        with self._producer.transaction(commit=False):
            for partition in range(self._names.partitions):
                for _ in range(_ABORTED):
                    lost = self._users.prompt(at_ms)
                    place = (self._names.delay, partition)
                    self._producer.write(place, lost.key, lost.value, lost.headers, at_ms)
        with self._producer.transaction():
            self._append(self._producer, requests[half:])

    def _append(self, writer: CountedWriter, requests: Sequence[Request]) -> None:
        for asked in requests:
            place = (self._names.delay, asked.partition)
            offset = writer.write(place, asked.key, asked.value, asked.headers, asked.written_ms)
            is_timed = asked.op == "schedule"
            key_ms = min(asked.due_ms, asked.written_ms + ROLL_WINDOW_MS) if is_timed else 0
            self._log[asked.partition].append((Record(offset, key_ms, asked), asked.written_ms))
        self._life.records += len(requests)

    def _bystanders(self) -> None:
        target, other = ((topic, 0) for topic in self._names.targets)
        foreign: Headers = [("delay-source", b"delay_topic_elsewhere:0:7"), ("delay-settles", b"7")]
        self._plain.write(target, b"k", b"of another producer", [("own", b"1")])
        self._plain.write(other, None, b"of another service", foreign)
        letters = (self._names.own("dead_letter"), 0)
        self._plain.write(letters, None, None, [("delay-replayed", b"0")])
        self._plain.flush()

    # --- the service ---------------------------------------------------------------------------

    def _settle(self, stop_ms: int) -> None:
        # Some of the outputs are written in an aborted transaction first.
        steps = [
            (shard, step) for shard in self._life.shards for step in self._steps(shard, stop_ms)
        ]
        with self._owner.transaction(commit=False):
            for shard, step in steps[:_SAMPLE]:
                if step.act == "deliver":
                    self._writes(self._owner, output_of(self._names, shard, step))
            self._commit_in_vain()
        with self._owner.transaction():
            for shard, step in steps:
                self._carry_out(shard, step)
            self._theatre.go_on(stop_ms, partial(self._writes, self._owner))
            for number in range(len(self._life.shards)):
                self._checkpoint(number)

    def _steps(self, shard: ModelShard, stop_ms: int) -> list[ModelStep]:
        log, self._log[shard.place[1]] = self._log[shard.place[1]], []
        steps: list[ModelStep] = []
        for number, (record, appended_ms) in enumerate(log):
            steps += shard.advance(appended_ms, LATENESS_MS)
            if shard.awaits(record):
                self._log[shard.place[1]] = log[number:]
                break
            steps += shard.pass_offset(record, appended_ms + LATENESS_MS)
        steps += shard.advance(stop_ms, LATENESS_MS)
        shard.forget()
        return steps

    def _carry_out(self, shard: ModelShard, step: ModelStep) -> None:
        output, again = output_of(self._names, shard, step), step.again
        if again is None:
            self._writes(self._owner, output)
            return
        again.offset = self._owner.write(
            output.place, output.key, output.value, output.headers, output.at_ms
        )
        self._log[shard.place[1]].append((again, step.at_ms))

    def _writes(self, writer: CountedWriter, output: OutputRecord) -> int:
        # H must advance past a record of the delay topic in the next step.
        topic, partition = output.place
        offset = writer.write(output.place, output.key, output.value, output.headers, output.at_ms)
        if topic == self._names.delay:
            asked = Request(partition, output.at_ms, None, None, [], SCENE)
            self._log[partition].append((Record(offset, 0, asked), output.at_ms))
            self._life.records += writer is not self._owner
        return offset

    def _be_busy(self) -> None:
        with self._owner.transaction():
            for _ in range(_BUSY):
                self._checkpoint(0)

    def _commit_in_vain(self) -> None:
        number = len(self._life.shards) - 1
        before = self._life.checkpoints.get(number)
        self._checkpoint(number)
        if before is not None:
            self._life.checkpoints[number] = before

    def _checkpoint(self, number: int) -> None:
        self._commit += 1
        life, names, shard = self._life, self._names, self._life.shards[number]
        said: dict[str, Any] = {
            "topic_id": life.topic_id,
            "k": shard.key,
            "h": shard.h,
            "contracts": [{"from": 0, "contract": contract(ROLL_WINDOW_MS)}],
        }
        if number in life.turns:
            longer = contract(ROLL_WINDOW_MS, MAX_DELAY_MS + HOUR_MS)
            said["contracts"] += [{"from": life.turns[number], "contract": longer}]
        value = to_json(
            {
                "v": 1,
                "slice": number,
                "node": "n1",
                "writer": f"drill-n1-0-{names.run}",
                "claim": number,
                "epoch": 1,
                "commit": self._commit,
                "secret": "0",
                "shards": {shard.place[0]: said},
            }
        )
        place = names.checkpoint_place(number)
        life.checkpoints[number] = self._owner.write(place, b"%d" % number, value)

    # --- the end -------------------------------------------------------------------------------

    def _leave(self) -> None:
        # Copies store schedules from H on. Earlier records that these or control records replace,
        # cancel or fire are marked.
        for shard, log in zip(self._life.shards, self._log, strict=True):
            records = [record for record, _ in log]
            for record in records:
                shard.hit(record)
            self._life.beyond.append([r for r in records if r.request.op == "schedule"])
