"""One history with every kind of defect and everything that only looks like one."""

from __future__ import annotations

from typing import Final, NamedTuple

from delayservice.core.codec import Payload
from delayservice.core.copies import write_copy
from delayservice.core.partitioner import partition_for
from tests.spark.made_history import DAY_MS, Header, MadeHistory

SECRET: Final = b"only-for-tests-0123456789"
LATE_MS: Final = 5_000
OVERDUE_MS: Final = 1
LEFT_OUT: Final = b"its key, value and headers (105 bytes) are left out, for they were refused"
PARTITIONS: Final = 2

Found = tuple[str, int, int]
"""Kind, partition and offset of the record that it is about."""


class Defects(NamedTuple):
    """A history, and all that an audit has to find in it."""

    history: MadeHistory
    injected: set[Found]
    rolled: int
    """Offset of a sound record in partition 0 that a copy settles."""


def copy_headers(
    history: MadeHistory,
    settles: int,
    due_ms: int,
    *,
    at_ms: int,
    base: int = 0,
    secret: bytes = SECRET,
    value: bytes = b"value",
    record_id: bytes | None = None,
) -> list[Header]:
    """The headers of a copy in partition 0, as the service signs them."""
    payload: Payload = (
        *(history.target, -1, None, value, [], due_ms),
        (record_id, None, 1, None),
    )
    source = f"{history.delay}:0:{max(settles, 0)}".encode()
    _, _, headers = write_copy(
        *(history.delay, 0, secret),
        settles=settles,
        source=source,
        base=base or settles + 1,
        at_ms=at_ms,
        payload=payload,
    )
    return [(name, text or b"") for name, text in headers]


def inject(history: MadeHistory) -> Defects:
    """Write all of it; K is a minute ago."""
    maker = _Maker(history)
    history.plain(400)
    maker.sound()
    maker.copies()
    maker.named()
    maker.holes()
    maker.lost()
    maker.doubled()
    maker.mistimed()
    maker.altered()
    maker.misplaced()
    maker.wrong_outcomes()
    maker.unaccounted()
    history.settled(maker.k_ms)
    return Defects(history, maker.injected, maker.rolled)


class _Maker:
    def __init__(self, history: MadeHistory) -> None:
        self.h = history
        self.due_ms = history.now_ms - 120_000
        self.k_ms = history.now_ms - 30_000
        self.far_ms = history.now_ms + DAY_MS
        self.injected: set[Found] = set()
        self.rolled = -1

    def defect(self, kind: str, offset: int, partition: int = 0) -> None:
        self.injected.add((kind, partition, offset))

    # --- sound ---------------------------------------------------------------------------------

    def sound(self) -> None:
        """Plain things that are as they should be."""
        h, due_ms = self.h, self.due_ms
        for number in range(20):
            key = b"key-%d" % number
            offset = h.source(due_ms, ("own", b""), key=key, value=None)
            to = partition_for(key, PARTITIONS)
            h.delivery(offset, due_ms, ("own", b""), key=key, value=None, to=to)
        named = h.source(due_ms, ("delay-target-partition", b"1"), key=b"key-0")
        h.delivery(named, due_ms, key=b"key-0", to=1)
        renamed = h.source(due_ms, ("delay-target-key", b"other"), key=b"key-0")
        h.delivery(renamed, due_ms, key=b"other", to=partition_for(b"other", PARTITIONS))
        h.source(self.far_ms)
        refused = h.write(h.delay, [("delay-at", b"soon"), ("own", b"1")], key=b"k")
        h.letter(refused, ("delay-at", b"soon"), ("own", b"1"), code="time-invalid", key=b"k")
        copied = [("delay-at", b"soon"), ("delay-replayed", b"0")]
        h.letter(h.write(h.delay, copied), *copied, code="time-invalid")
        gone = h.source(due_ms)
        asked = [("delay-at", b"%d" % due_ms), ("delay-target-topic", h.target.encode())]
        h.letter(gone, *asked, code="target-unknown")
        bare = h.source(due_ms, ("own", b"1" * 100))
        h.write(h.dead_letter, self.why(bare, "too-large", LEFT_OUT), value=None)
        h.write(h.dead_letter, [("delay-replayed", b"0")], value=None)
        h.write(h.target, [("own", b"1")], value=b"of another producer")
        h.write(h.target, h.told(7, due_ms)[:1] + self.elsewhere(), value=b"of another service")

    def why(self, offset: int, code: str, detail: bytes) -> list[Header]:
        told = [("delay-error", code.encode()), ("delay-error-detail", detail)]
        return [*told, *self.h.told(offset, self.due_ms)[1:]]

    def elsewhere(self) -> list[Header]:
        return [("delay-source", b"delay_topic_elsewhere:0:7"), ("delay-settles", b"7")]

    def copies(self) -> None:
        """Rolled, and recurring; and a copy that the service refused as forged."""
        h, due_ms = self.h, self.due_ms
        rolled = self.rolled = h.source(due_ms)
        copy = h.write(h.delay, copy_headers(h, rolled, due_ms, at_ms=due_ms))
        h.delivery_of_copy(rolled, copy, due_ms)
        again = copy_headers(h, -1, self.far_ms, at_ms=self.far_ms)
        h.write(h.delay, again)
        known = h.source(due_ms)
        h.delivery(known, due_ms)
        forged = copy_headers(h, known, due_ms, at_ms=due_ms, secret=b"a stranger's")
        offset = h.write(h.delay, forged)
        h.letter(offset, *forged, code="copy-forged")

    def named(self) -> None:
        """Cancelled, replaced, fired and expired records."""
        h, far_ms = self.h, self.far_ms
        victim = h.source(far_ms, ("delay-id", b"a"))
        cancel = h.write(h.delay, [("delay-id", b"a"), ("delay-op", b"cancel")])
        h.outcome("cancelled", victim, ("delay-id", b"a"), by=cancel)
        h.outcome("cancelled", cancel, ("delay-id", b"a"))
        replaced = h.source(far_ms, ("delay-id", b"b"))
        by = h.source(far_ms + 1, ("delay-id", b"b"))
        h.outcome("replaced", replaced, ("delay-id", b"b"), by=by)
        fired = h.source(far_ms, ("delay-id", b"c"))
        fire = h.write(h.delay, [("delay-id", b"c"), ("delay-op", b"fire")])
        more = [("delay-id", b"c"), ("delay-fired-by", b"%d" % fire)]
        h.delivery(fired, far_ms, at_ms=h.now_ms, more=more)
        h.outcome("fired", fire, ("delay-id", b"c"))
        nothing = h.write(h.delay, [("delay-id", b"d"), ("delay-op", b"cancel")])
        h.outcome("not_pending", nothing, ("delay-id", b"d"))
        late = h.source(self.due_ms, ("delay-expires-at", b"%d" % (self.due_ms + 1)))
        h.outcome("expired", late, at_ms=self.due_ms + 2)

    def holes(self) -> None:
        """Offsets without a record: a transaction's marker, and records of an aborted one."""
        self.h.transaction(self.due_ms, commit=True)
        self.h.transaction(self.due_ms, commit=False)

    # --- defects -------------------------------------------------------------------------------

    def lost(self) -> None:
        h, due_ms = self.h, self.due_ms
        for partition in range(PARTITIONS):
            self.defect("lost", h.source(due_ms, partition=partition), partition)
        cancel = h.write(h.delay, [("delay-id", b"nobody"), ("delay-op", b"cancel")])
        self.defect("lost", cancel)
        self.defect("lost", h.source(self.far_ms, ("delay-id", b"e")))
        own = h.write(h.delay, [("delay-id", b"e"), ("delay-op", b"cancel")])
        h.outcome("cancelled", own)
        hidden = h.source(due_ms)
        self.defect("lost", hidden)
        forged = copy_headers(h, hidden, due_ms, at_ms=due_ms, secret=b"a stranger's")
        h.letter(h.write(h.delay, forged), *forged, code="copy-forged")
        rolled = h.source(due_ms)
        self.defect("lost", h.write(h.delay, copy_headers(h, rolled, due_ms, at_ms=due_ms)))

    def doubled(self) -> None:
        h, due_ms = self.h, self.due_ms
        twice = h.source(due_ms)
        h.delivery(twice, due_ms)
        h.delivery(twice, due_ms)
        self.defect("duplicated", twice)
        both = h.source(due_ms)
        h.delivery(both, due_ms)
        asked = [("delay-at", b"%d" % due_ms), ("delay-target-topic", h.target.encode())]
        h.letter(both, *asked, code="target-unknown")
        self.defect("duplicated", both)
        split = h.source(due_ms)
        h.delivery(split, due_ms, at_ms=due_ms + 2_000)
        h.delivery(split, due_ms, topic=h.other)  # before it: no consumer has forwarded it
        self.defect("duplicated", split)

    def mistimed(self) -> None:
        h, due_ms = self.h, self.due_ms
        early = h.source(due_ms)
        h.delivery(early, due_ms, at_ms=due_ms - 1)
        self.defect("early", early)
        liar = h.source(due_ms)
        h.delivery(liar, due_ms - 9, at_ms=due_ms - 9)
        self.defect("early", liar)
        self.defect("altered", liar)
        late = h.source(h.now_ms - 60_000)
        h.delivery(late, h.now_ms - 60_000, at_ms=h.now_ms + 60_000)
        self.defect("late", late)

    def altered(self) -> None:
        h, due_ms = self.h, self.due_ms
        two: tuple[Header, Header] = (("own", b"1"), ("own", b"2"))
        for key, value, own in [
            (None, b"another", two),
            (b"key", b"value", two),
            (None, None, two),
            (None, b"value", two[::-1]),
            (None, b"value", two[:1]),
        ]:
            offset = h.source(due_ms, *two)
            to = partition_for(key, PARTITIONS) if key else 0
            h.delivery(offset, due_ms, *own, key=key, value=value, to=to)
            self.defect("altered", offset)
        refused = h.write(h.delay, [("delay-at", b"soon")], value=b"value")
        h.letter(refused, ("delay-at", b"later"), code="time-invalid")
        self.defect("altered", refused)
        rolled = h.source(due_ms)
        other = copy_headers(h, rolled, due_ms, at_ms=due_ms, value=b"another")
        copy = h.write(h.delay, other, value=b"another")
        h.delivery_of_copy(rolled, copy, due_ms, value=b"another")
        self.defect("altered", rolled)

    def misplaced(self) -> None:
        h, due_ms = self.h, self.due_ms
        offset = h.source(due_ms)
        h.delivery(offset, due_ms, topic=h.other)
        self.defect("wrong_target", offset)
        named = h.source(due_ms, ("delay-target-partition", b"1"))
        h.delivery(named, due_ms, to=0)
        self.defect("wrong_target", named)
        keyed = h.source(due_ms, key=b"key-0")
        h.delivery(keyed, due_ms, key=b"key-0", to=1 - partition_for(b"key-0", PARTITIONS))
        self.defect("wrong_target", keyed)

    def wrong_outcomes(self) -> None:
        h, due_ms = self.h, self.due_ms
        refused = h.write(h.delay, [("delay-at", b"soon")])
        h.delivery(refused, due_ms)
        self.defect("wrong_outcome", refused)
        endless = h.source(due_ms)
        h.outcome("expired", endless)
        self.defect("wrong_outcome", endless)
        good = h.source(due_ms)
        h.letter(good, code="time-missing")
        self.defect("wrong_outcome", good)
        victim = h.source(self.far_ms, ("delay-id", b"f"))
        cancel = h.write(h.delay, [("delay-id", b"f"), ("delay-op", b"cancel")])
        h.outcome("cancelled", victim, by=cancel - 1)
        h.outcome("cancelled", cancel)
        self.defect("wrong_outcome", victim)
        mute = h.source(due_ms)
        h.letter(mute, code="")
        self.defect("dead_letter_missing_code", mute)

    def unaccounted(self) -> None:
        h = self.h
        for headers in ([], [("delay-id", b"g")]):
            due_ms = self.k_ms + 1
            offset = h.source(due_ms, *headers)
            h.delivery(offset, due_ms, more=headers)
            self.defect("not_checkpointed", offset)
        self.defect("overdue", h.source(self.k_ms + 2))
        huge = [*h.told(0, self.due_ms)[:2], ("delay-settles", b"9" * 30)]
        self.defect("malformed", h.write(h.target, huge))
        h.delivery(1_000_000, self.due_ms)
        self.defect("unknown_source", 1_000_000)
        marker = h.transaction(self.due_ms, commit=True)
        h.delivery(marker, self.due_ms)
        self.defect("unknown_source", marker)
