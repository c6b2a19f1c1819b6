"""Digest of a shard's copy: count and hash of the pending records in each hour of due time.

A copy is what one node has stored of a shard. Copies are compared by digests, and not record by
record. ``engine.cursor`` defines H and K. A digest covers records with offsets below H, except
those whose mark (offset of the canceller) is below H; it begins some minutes after K
(``compared_from_ms``). It is updated with each stored record: changes by offsets from H on wait
until H passes them.

The hash of an hour is the sum of its records' hashes modulo 2^64, so their order does not matter
and a record can be subtracted. A canceller knows the key and id of its record but not its payload,
so a record with an id is hashed with the id instead. The payload of such a record is compared only
in a comparison of single records (``commands.Report``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from xxhash import xxh3_64_intdigest

from delayservice.engine.cursor import Cursor, Frame, Key, Mark, Named

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
# Minutes from that of K on that are not summed up: their records are settled, or will be before
# copies can be compared. An owner has settled some by a later K than that of the cut.
NEAR_MINUTES: Final = 2
# Changes that wait until H passes their offsets. Beyond this number they are counted early, and the
# digest is not published until H has passed them. It limits memory while a slice has no owner.
LATER_MAX: Final = 50_000

_MASK: Final = 2**64 - 1
_GOLDEN: Final = 0x9E37_79B9_7F4A_7C15

# ``(from_offset, key_ms, offset, amount)``: a change of the sums by the record with that key time
# and source offset. It counts once H is above ``from_offset``. ``amount``: see ``_ONE``.
_Change: TypeAlias = tuple[int, int, int, int]

# Weight of one record in an amount: the number of records times this weight, plus the sum of their
# hashes, in one integer. One addition for both takes half the time of two (``bench whole``). The
# sum of 2^31 hashes fits.
_ONE: Final = 1 << 96


def frame_hash(key_ms: int, offset: int, record_id: bytes | None, payload: bytes) -> int:
    """Return the 64-bit hash of a pending record with this key time, epoch milliseconds, and source
    offset. The payload is as ``codec.encode_payload`` returns it; if there is a ``record_id``, it
    is hashed instead.
    """
    seed = (key_ms * _GOLDEN + offset) & _MASK
    hashed: int = xxh3_64_intdigest(payload if record_id is None else record_id, seed)
    return hashed


def compared_from_ms(key_ms: int) -> int:
    """Return the lowest key time that a digest covers at a K of this key time, epoch ms. It is a
    minute later than what copies keep, so that an owner whose K has moved on a little since covers
    the same.
    """
    return (key_ms // MINUTE_MS + NEAR_MINUTES + 1) * MINUTE_MS


class HourSum(NamedTuple):
    """Number and sum of the hashes of the pending records of one hour, from ``hour_ms``, epoch
    milliseconds.
    """

    hour_ms: int
    records: int
    hash: int


class HourSums:
    """Sums over the pending records of each hour (``_ONE``). Hours count from the epoch. They are
    kept by minute, because K passes one minute after another.
    """

    def __init__(self) -> None:
        self._hours: dict[int, list[int]] = {}
        # Hours that have changed since they were last published.
        self.changed: set[int] = set()

    @property
    def hours(self) -> set[int]:
        return set(self._hours)

    def add(self, changes: Iterable[_Change]) -> None:
        hours, minutes = self._hours, HOUR_MS // MINUTE_MS
        last, amounts = -1, [0]
        for _, key_ms, _, amount in changes:
            minute = key_ms // MINUTE_MS
            hour = minute // minutes
            if hour != last:
                last = hour
                amounts = hours.get(hour) or hours.setdefault(hour, [0] * minutes)
                self.changed.add(hour)
            amounts[minute - hour * minutes] += amount

    def forget_below(self, key_ms: int) -> None:
        """Drop all minutes before ``key_ms``, epoch milliseconds, the start of a minute."""
        last, gone = divmod(key_ms // MINUTE_MS, HOUR_MS // MINUTE_MS)
        for hour in [hour for hour in self._hours if hour < last]:
            del self._hours[hour]
            self.changed.add(hour)
        if last in self._hours:
            self._hours[last][:gone] = [0] * gone
            self.changed.add(last)

    def all_changed(self) -> None:
        """Mark all hours as changed, so that they are published again."""
        self.changed.update(self._hours)

    def take_changed(self, from_ms: int) -> list[HourSum]:
        """Return the sums of changed hours, of records from the minute ``from_ms`` on, epoch ms; it
        is at most one minute after what ``forget_below`` has kept. An hour without records has a
        sum of zeros.
        """
        self.changed |= self._hours.keys() & {from_ms // HOUR_MS, (from_ms - 1) // HOUR_MS}
        found = [
            HourSum(hour * HOUR_MS, *_parts(self._amount(hour, from_ms)))
            for hour in sorted(self.changed)
        ]
        self.changed.clear()
        return found

    def totals(self, from_ms: int = 0) -> tuple[int, int, int]:
        """Return the number of hours with pending records, and number and hash of all records, from
        the minute ``from_ms`` on.
        """
        held = [amount for hour in self._hours if (amount := self._amount(hour, from_ms))]
        return len(held), *_parts(sum(held))

    def _amount(self, hour: int, from_ms: int) -> int:
        skipped = max((from_ms - hour * HOUR_MS) // MINUTE_MS, 0)
        return sum(self._hours.get(hour, ())[skipped:])


def _parts(amount: int) -> tuple[int, int]:
    count = (amount + _ONE // 2) // _ONE
    return count, (amount - count * _ONE) & _MASK


class ShardDigest:
    """Digest of one shard as this node stores it, and a second one that a scan makes from the disk.

    Attributes:
        sums: count and hash of the records pending below source offset ``counted``; None before the
            first scan has ended, if the store was not empty at first.
        counted: the source offset below which records and marks count in ``sums``.
        stored: the next source offset that the store will hold.
        from_ms: start of the first minute that is counted, epoch milliseconds. Records of earlier
            minutes are settled, or will be soon.
    """

    def __init__(self, stored: int) -> None:
        self.sums: HourSums | None = HourSums() if stored == 0 else None
        self.counted = self.stored = stored
        self.from_ms = 0
        self._later: list[_Change] = []
        self._making: HourSums | None = None
        self._made_upto: Key = (0, 0)

    # --- what is stored ------------------------------------------------------------------------

    def store(
        self, frames: Sequence[Frame], named: Sequence[Named], marks: Sequence[Mark], stop: int
    ) -> None:
        """Add what one ``Store.append`` adds as changes that wait for H. ``stop``: the new S."""
        near = self.from_ms
        ids = {offset: record_id for record_id, _, offset, _ in named}
        hashed, one = xxh3_64_intdigest, _ONE
        # ``frame_hash`` without the call: every record passes here (bench whole).
        changes: list[_Change] = [
            (
                offset,
                key_ms,
                offset,
                one + hashed(ids.get(offset, payload), (key_ms * _GOLDEN + offset) & _MASK),
            )
            for key_ms, offset, _, payload in frames
            if key_ms >= near
        ]
        if marks:
            changes += [
                (
                    max(mark, offset),
                    key_ms,
                    offset,
                    -_ONE - frame_hash(key_ms, offset, record_id, b""),
                )
                for record_id, key_ms, offset, mark in marks
                if key_ms >= near
            ]
            changes.sort()
        self._later += changes
        self.stored = stop
        if len(self._later) > LATER_MAX:
            self._count(self._later[-1][0] + 1)

    def reset(self) -> None:
        self._later.clear()
        before, self.sums, self._making = self.sums, HourSums(), None
        if before is not None:
            self.sums.changed |= before.changed | before.hours
        self.counted = self.stored = 0

    # --- the cursor ----------------------------------------------------------------------------

    def follow(self, cursor: Cursor) -> None:
        """Apply a committed cursor: count the changes below H, and drop the minutes that K has
        passed.
        """
        if cursor.offset > self.counted:
            self._count(min(cursor.offset, self.stored))
        self.pass_key(cursor.key)

    def pass_key(self, key: Key) -> None:
        from_ms = (key[0] // MINUTE_MS + NEAR_MINUTES) * MINUTE_MS
        if from_ms > self.from_ms:
            self.from_ms = from_ms
            for sums in (self.sums, self._making):
                if sums is not None:
                    sums.forget_below(from_ms)

    def _count(self, stop: int) -> None:
        later = self._later
        end = bisect_left(later, (stop,))
        near, upto = self.from_ms, self._made_upto
        counted = [change for change in later[:end] if change[1] >= near]
        del later[:end]
        if self.sums is not None:
            self.sums.add(counted)
        if self._making is not None:
            self._making.add(change for change in counted if change[1:3] <= upto)
        self.counted = max(self.counted, stop)

    def is_exact_at(self, offset: int) -> bool:
        """Return whether ``sums`` are exact at H = ``offset``: they may be compared there."""
        return self.sums is not None and self.counted <= offset <= self.stored

    # --- scan of the disk ------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a second digest, to which ``scanned`` adds the records on the disk."""
        self._making, self._made_upto = HourSums(), (0, 0)

    def scanned(self, frames: Iterable[tuple[Frame, bytes | None]], upto: Key) -> None:
        """Add records read from the disk to the second digest, each with its id or None. The
        records of one call have keys above ``upto`` of the last call, up to this ``upto``,
        inclusive. Records and marks with source offsets from ``counted`` on are added when H passes
        them.
        """
        making = self._making
        if making is None:
            raise AssertionError("scanned before begin")
        counted, near = self.counted, self.from_ms
        making.add(
            (0, key_ms, offset, _ONE + frame_hash(key_ms, offset, record_id, payload))
            for (key_ms, offset, mark, payload), record_id in frames
            if key_ms >= near and offset < counted and not 0 <= mark < counted
        )
        self._made_upto = upto

    def finish(self) -> bool:
        """Replace ``sums`` by the second digest; return whether ``sums`` existed and differed from
        it.
        """
        before, made = self.sums, self._making
        if made is None:
            raise AssertionError("finished before begin")
        differs = before is not None and before.totals() != made.totals()
        made.all_changed()
        if before is not None:
            made.changed |= before.changed | before.hours
        self.sums, self._making = made, None
        return differs
