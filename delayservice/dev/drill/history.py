"""Some days of a delay service, written into real topics as producers and the service write them.

Time goes by in steps. In each, producers write, some of them in transactions and some of those
aborted; then the owner passes what they wrote and settles what has come due, in a transaction with
its checkpoint, now and then after one that failed. Where slices share a partition of checkpoints,
one of them commits often at the end. What is written last, no checkpoint has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from delayservice.dev.drill.sabotage import Delivery, Output, Saboteur
from delayservice.dev.drill.service import ROLL_WINDOW_MS, Record, Shard, Step
from delayservice.dev.drill.users import Names, Request, Users
from delayservice.dev.drill.wire import BY_KEY, DAY_MS, Headers, contract, partition_of, to_json
from delayservice.dev.drill.writing import Ends, Writer

STEPS: Final = 36
SPAN_MS: Final = 3 * DAY_MS
TAIL_MS: Final = 120_000
"""So long before now the last checkpoint was written."""
_LATENESS_MS: Final = 50
_ABORTED: Final = 2
"""Records of each partition in a producer's transaction that is aborted."""
_SAMPLE: Final = 20
"""Outputs in a transaction of the service that fails."""
_BUSY: Final = 1_000
"""Commits of one slice at the end: the newest checkpoints of others lie far behind them."""


@dataclass(slots=True)
class Life:
    """What a history has come to.

    Attributes:
        names: its topics.
        topic_id: of the delay topic.
        shards: as their owner left them.
        beyond: records above H, by partition.
        checkpoints: offset of the newest checkpoint of each slice.
        records: what producers have committed.
        now_ms: the end of it.
        ends: where all logs end.
    """

    names: Names
    topic_id: str
    shards: list[Shard]
    now_ms: int
    ends: Ends
    beyond: list[list[Record]] = field(default_factory=list)
    checkpoints: dict[int, int] = field(default_factory=dict)
    records: int = 0


class History:
    """Writes one history.

    Args:
        life: filled as it goes.
        users: the producers.
        saboteur: who spoils outputs.
        plain: writes without transactions.
        producer: a producer's transactions.
        owner: the service's.
    """

    def __init__(
        self,
        life: Life,
        users: Users,
        saboteur: Saboteur,
        plain: Writer,
        producer: Writer,
        owner: Writer,
    ) -> None:
        self._life = life
        self._names = life.names
        self._users = users
        self._saboteur = saboteur
        self._plain = plain
        self._producer = producer
        self._owner = owner
        self._log: list[list[tuple[Record, int]]] = [[] for _ in life.shards]
        """What H has not passed: records, and when they were appended."""
        self._commit = 0

    def write(self, records: int, unaccounted: int, tell: Callable[[int], None]) -> None:
        """Write all of it; ``tell`` hears how many records there are."""
        start_ms = self._life.now_ms - TAIL_MS - SPAN_MS
        each, tail = divmod(records - unaccounted, STEPS + 1)
        for number in range(STEPS):
            stop_ms = start_ms + SPAN_MS // STEPS
            self._produce(self._requests(each, start_ms, stop_ms))
            self._settle(stop_ms)
            start_ms = stop_ms
            tell((number + 1) * each)
        if self._names.checkpoint_partitions:
            self._be_busy()
        self._bystanders()
        self._produce(self._requests(each + tail, start_ms, self._life.now_ms))
        self._run_ahead(unaccounted)
        self._leave()
        tell(records)

    def _requests(self, count: int, start_ms: int, stop_ms: int) -> list[Request]:
        span = stop_ms - start_ms
        return [self._users.request(start_ms + span * n // count) for n in range(count)]

    # --- producers -----------------------------------------------------------------------------

    def _produce(self, requests: Sequence[Request]) -> None:
        """Some without transactions, the others in one; and some in one that is aborted."""
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

    def _append(self, writer: Writer, requests: Sequence[Request]) -> None:
        for asked in requests:
            place = (self._names.delay, asked.partition)
            offset = writer.write(place, asked.key, asked.value, asked.headers, asked.written_ms)
            is_timed = asked.op == "schedule"
            key_ms = min(asked.due_ms, asked.written_ms + ROLL_WINDOW_MS) if is_timed else 0
            self._log[asked.partition].append((Record(offset, key_ms, asked), asked.written_ms))
        self._life.records += len(requests)

    def _bystanders(self) -> None:
        """Write what other services write to the same topics; none of it is a defect."""
        target, other = ((topic, 0) for topic in self._names.targets)
        foreign: Headers = [("delay-source", b"delay_topic_elsewhere:0:7"), ("delay-settles", b"7")]
        self._plain.write(target, b"k", b"of another producer", [("own", b"1")])
        self._plain.write(other, None, b"of another service", foreign)
        letters = (self._names.own("dead_letter"), 0)
        self._plain.write(letters, None, None, [("delay-replayed", b"0")])
        self._plain.flush()

    # --- the service ---------------------------------------------------------------------------

    def _settle(self, stop_ms: int) -> None:
        """Pass all that was written and settle what is due before ``stop_ms``."""
        steps = [
            (shard, step) for shard in self._life.shards for step in self._steps(shard, stop_ms)
        ]
        with self._owner.transaction(commit=False):
            for shard, step in steps[:_SAMPLE]:
                if step.act == "deliver":
                    self._owner_writes(self._output(step, shard.told(step.record)))
            self._commit_in_vain()
        with self._owner.transaction():
            for shard, step in steps:
                self._carry_out(shard, step)
            for number in range(len(self._life.shards)):
                self._checkpoint(number)

    def _steps(self, shard: Shard, stop_ms: int) -> list[Step]:
        log, self._log[shard.place[1]] = self._log[shard.place[1]], []
        steps: list[Step] = []
        for number, (record, appended_ms) in enumerate(log):
            steps += shard.advance(appended_ms, _LATENESS_MS)
            if shard.awaits(record):
                self._log[shard.place[1]] = log[number:]
                break
            steps += shard.pass_offset(record, appended_ms + _LATENESS_MS)
        steps += shard.advance(stop_ms, _LATENESS_MS)
        shard.forget()
        return steps

    def _carry_out(self, shard: Shard, step: Step) -> None:
        record = step.record
        told = shard.told(record)
        asked = record.request
        if step.act == "deliver":
            output = self._output(step, told)
            if record.attempt > 1:
                self._owner_writes(output)
                return
            is_keyed = asked.out_key is not None or asked.to != BY_KEY
            delivery = Delivery(shard.place, record.offset, asked.due_ms, is_keyed, output)
            self._saboteur.deliver(delivery, self._owner_writes)
        elif step.act == "fire":
            by = ("delay-fired-by", b"%d" % step.by)
            self._owner_writes(self._output(step, [*told, by]))
        elif step.act == "copy":
            self._copy(shard, step)
        elif step.act == "letter":
            self._letter(step, told)
        else:
            self._outcome(shard, step, told)

    def _output(self, step: Step, told: Headers) -> Output:
        asked, count = step.record.request, self._names.partitions
        partition = asked.to
        if partition == BY_KEY:
            key = asked.out_key
            partition = step.record.offset % count if key is None else partition_of(key, count)
        place = (asked.target, partition)
        return Output(place, asked.out_key, asked.value, asked.own, told, step.at_ms)

    def _owner_writes(self, output: Output) -> int:
        headers = [*output.own, *output.told]
        return self._owner.write(output.place, output.key, output.value, headers, output.at_ms)

    def _copy(self, shard: Shard, step: Step) -> None:
        again = step.again
        if again is None:
            raise AssertionError("a copy of nothing")
        asked = again.request
        headers = shard.copy_headers(step.record, again, self._names.secret)
        again.offset = self._owner.write(
            shard.place, asked.out_key, asked.value, headers, step.at_ms
        )
        self._log[shard.place[1]].append((again, step.at_ms))

    def _letter(self, step: Step, told: Headers) -> None:
        asked = step.record.request
        key, headers = asked.key, asked.headers
        if asked.op:
            due, target = b"%d" % asked.due_ms, asked.target.encode()
            key, headers = asked.out_key, [*asked.own, ("delay-at", due)]
            headers.append(("delay-target-topic", target))
        why: Headers = [("delay-error", step.text.encode()), ("delay-error-detail", b"drilled")]
        place = (self._names.own("dead_letter"), 0)
        self._owner.write(place, key, asked.value, [*headers, *why, *told[1:3]], step.at_ms)

    def _outcome(self, shard: Shard, step: Step, told: Headers) -> None:
        name = {"control": step.text, "expire": "expired"}.get(step.act, step.act)
        headers: Headers = [("delay-outcome", name.encode()), ("delay-shard", shard.name.encode())]
        headers.append(told[2])
        headers += [header for header in told if header[0] == "delay-id"]
        if step.act in ("control", "expire"):
            headers.append(told[1])
        if step.by >= 0:
            headers.append(("delay-settled-by", b"%d" % step.by))
        place = (self._names.own("outcomes"), 0)
        self._owner.write(place, step.record.request.record_id, None, headers, step.at_ms)

    def _be_busy(self) -> None:
        """Have the first slice commit often, although nothing has changed."""
        with self._owner.transaction():
            for _ in range(_BUSY):
                self._checkpoint(0)

    def _commit_in_vain(self) -> None:
        """Write the last slice's checkpoint in a transaction that fails."""
        number = len(self._life.shards) - 1
        before = self._life.checkpoints.get(number)
        self._checkpoint(number)
        if before is not None:
            self._life.checkpoints[number] = before

    def _checkpoint(self, number: int) -> None:
        self._commit += 1
        life, names, shard = self._life, self._names, self._life.shards[number]
        said = {
            "topic_id": life.topic_id,
            "k": shard.key,
            "h": shard.h,
            "contracts": [{"from": 0, "contract": contract([names.allow], ROLL_WINDOW_MS)}],
        }
        is_shared = names.checkpoint_partitions > 0
        tenure = {"writer": f"drill-n1-0-{names.run}", "claim": number} if is_shared else {}
        value = to_json(
            {
                "v": 2 if is_shared else 1,
                "slice": number,
                "node": "n1",
                **tenure,
                "epoch": 1,
                "commit": self._commit,
                "secret": "0",
                "shards": {shard.place[0]: said},
            }
        )
        place = names.checkpoint_place(number)
        life.checkpoints[number] = self._owner.write(place, b"%d" % number, value)

    # --- the end -------------------------------------------------------------------------------

    def _run_ahead(self, count: int) -> None:
        """Deliver what no checkpoint has passed."""
        requests = [self._users.prompt(self._life.now_ms - TAIL_MS // 2) for _ in range(count)]
        self._append(self._plain, requests)
        self._plain.flush()
        mine = {id(asked) for asked in requests}
        ahead = [r for log in self._log for r, _ in log if id(r.request) in mine]
        if not ahead:
            return
        with self._owner.transaction():
            for record in ahead:
                shard = self._life.shards[record.request.partition]
                step = Step("deliver", record, record.request.due_ms + _LATENESS_MS)
                output = self._output(step, shard.told(step.record))
                due_ms = record.request.due_ms
                delivery = Delivery(
                    shard.place, record.offset, due_ms, is_keyed=False, output=output
                )
                self._saboteur.unaccounted(delivery, self._owner_writes)

    def _leave(self) -> None:
        """Leave records above H: copies store them, and mark what they will cancel."""
        for shard, log in zip(self._life.shards, self._log, strict=True):
            records = [record for record, _ in log]
            for record in records:
                shard.hit(record)
            self._life.beyond.append([r for r in records if r.request.op == "schedule"])
