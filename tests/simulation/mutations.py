"""Deliberate mistakes in the real code, one at a time: the simulation must catch every one.

The first twelve are those that a model of the protocol caught, those of how a slice changes its
owner but the last another of take-overs; the others break further rules. Each public function makes
a patch that holds while its context is open.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, cast
from unittest.mock import patch

from confluent_kafka import IsolationLevel, KafkaException

from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.log_ends import log_bounds
from connectors.kafka.sink import KafkaSink
from connectors.kafka.source import KafkaSource
from connectors.kafka.take_over_client import KafkaTakeOverClient
from connectors.kafka.target_limits import TargetLimits
from connectors.kafka.targets import TargetTopics
from delayservice.base.clock import ClockWatch
from delayservice.base.errors import KafkaEdgeError, OwnershipLostError
from delayservice.contract import recurrence as recurrence_module
from delayservice.contract.codec import Payload, decode_payload
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import (
    FIRE,
    INVALID,
    OFFSET_MAX,
    SCHEDULE,
    Entry,
    PolledRecord,
)
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine import outcome
from delayservice.engine import settle as settle_module
from delayservice.engine.cancels import OffsetAdvance
from delayservice.engine.checkpoint import UNKNOWN_STANDING, ShardCheckpoint, decode_checkpoint
from delayservice.engine.claims import (
    Claimed,
    ClaimLog,
    ClaimState,
    Tenure,
    decode_key,
    names_to_fence,
)
from delayservice.engine.cursor import NO_MARK, Additions, Cursor, Frame, Key
from delayservice.engine.marking import bearing_ids
from delayservice.engine.outcome import Output
from delayservice.engine.ports import Bounds, Place, PolledBatch, Role
from delayservice.engine.requeuer import Requeuer
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.slices import commit as commit_module
from delayservice.slices import ownership
from delayservice.slices.lane import Lane
from delayservice.slices.log_proof import LogProof
from delayservice.slices.log_window import LevelProof
from delayservice.slices.slice import Phase, Slice
from delayservice.slices.state import CommitEnded, LoopState, Roles, Timing
from delayservice.slices.store_label import Label, StoreLabel
from delayservice.slices.take_over import take_over_lane
from tests.simulation.mutating import mistake, replaced, rewritten, together
from tests.simulation.sim_log import CLAIMS_PLACE, OPEN, SimLog, Written, checkpoint_place
from tests.simulation.sim_store import SimStore

# --- mistakes that the model caught --------------------------------------------------------------


def replica_deletes_on_cancel() -> AbstractContextManager[Any]:
    """A replica deletes what a cancel or a reschedule hits, instead of marking it."""

    def ingest(original: Any, shard: Shard, *args: Any) -> Additions:
        added: Additions = original(shard, *args)
        if not shard.owned:
            shard.doomed = [mark[2] for mark in added.marks]  # type: ignore[attr-defined]
        return added

    def lane_ingest(original: Any, lane: Lane, *args: Any) -> int:
        lane.shard.doomed = []  # type: ignore[attr-defined]
        count: int = original(lane, *args)
        if isinstance(lane.store, SimStore):
            for offset in lane.shard.doomed:  # type: ignore[attr-defined]
                lane.store._frames.pop(offset, None)
        return count

    return together(replaced(Shard, "ingest", ingest), replaced(Lane, "ingest", lane_ingest))


@mistake(SimStore, "crash")
def marks_less_durable(original: Any, store: SimStore) -> None:
    """Marks are lost in a crash, although they lie below S."""
    original(store)
    store._marks.clear()


def index_at_stored() -> AbstractContextManager[Any]:
    """A cancel hits what the id index knows at S, while H lags behind."""

    def settle_late(original: Any, lane: Lane, *args: Any) -> Any:
        lane.shard.walk.index = lane.store.latest_unmarked  # type: ignore[attr-defined]
        return original(lane, *args)

    def act(original: Any, walk: OffsetAdvance, entry: Entry, name: bytes, *args: Any) -> Any:
        offset = entry[0]
        found = walk.index(name, OFFSET_MAX)  # type: ignore[attr-defined]
        if found is not None and found[1] < offset:
            walk.victims[offset] = {found: None}
        else:
            walk.victims.pop(offset, None)
        return original(walk, entry, name, *args)

    return together(
        replaced(Lane, "settle_late", settle_late),
        replaced(OffsetAdvance, "_act_at_home", act),
    )


def routing_by_uncommitted_key() -> AbstractContextManager[Any]:
    """What is late for a K that is only staged is not stored."""
    return rewritten(Shard, "ingest", "fresh, self.committed.key", "fresh, self.staged.key")


@mistake(commit_module, "begin_commit")
def prune_before_commit(original: Any, state: LoopState) -> None:
    """The store forgets what is about to be committed."""
    for slice_ in state.slices.values():
        for lane in slice_.lanes.values():
            if isinstance(lane, Lane):
                lane.store.prune(lane.shard.staged)
                lane.store.sync()
    original(state)


@mistake(SimStore, "prune")
def inclusive_slot_end(original: Any, store: SimStore, cursor: Cursor) -> None:
    """A slot goes when K reaches its last millisecond, not when K has passed it."""
    original(store, Cursor((cursor.key[0] + 1, cursor.key[1]), cursor.offset))


@mistake(SimStore, "lose_slot")
def lost_slot_unnoticed(original: Any, store: SimStore) -> None:
    """A slot's file is gone, and nobody counts."""
    original(store)
    store._lost_slots.clear()


def key_is_clock() -> AbstractContextManager[Any]:
    """K is set to the clock instead of the last settled key."""
    right, wrong = "k = (key_ms, offset)", "k = max((key_ms, offset), (now_ms, 1 << 62))"
    return rewritten(Shard, "advance_key", right, wrong)


def outcomes_from_memory() -> AbstractContextManager[Any]:
    """A cancel's outcome is what this node happens to remember of the id."""

    def ingest(original: Any, shard: Shard, *args: Any) -> Any:
        shard.walk.names = shard._names  # type: ignore[attr-defined]
        return original(shard, *args)

    wrong = "if any(o < offset for o in self.names._offsets.get(record_id, ())) else"
    return together(
        replaced(Shard, "ingest", ingest),
        rewritten(OffsetAdvance, "_act_at_home", "if victims else", wrong),
    )


def cancel_overlaps_roll() -> AbstractContextManager[Any]:
    """H passes a canceller whose victim's copy has not come back from the log yet."""
    return patch.object(OffsetAdvance, "_awaits_copy", lambda *_: False)


@mistake(Shard, "take_over")
def take_over_reads_to_h(
    original: Any, shard: Shard, cursor: Cursor, marked: Any, _: int, *rest: Any
) -> None:
    """A new owner starts once it has read up to H, not up to the end of the log."""
    original(shard, cursor, marked, cursor.offset, *rest)


@mistake(Shard, "_resolve")
def copy_without_its_cancel(original: Any, shard: Shard, *args: Any) -> dict[int, int]:
    """A copy is stored as if no cancel lay between its base and itself."""
    return dict.fromkeys(original(shard, *args), NO_MARK)


# --- other rules ---------------------------------------------------------------------------------


@mistake(Lane, "checkpoint")
def outputs_without_cursor(_: Any, lane: Lane) -> ShardCheckpoint:
    """Rule 1: outputs are committed with the cursor of the commit before."""
    return ShardCheckpoint(lane.topic_id, lane.shard.committed, lane.contracts)


@mistake(Lane, "adopt")
def keys_follow_settings(original: Any, lane: Lane, contracts: Contracts) -> None:
    """Rule 2: every record is read by the newest contract."""
    original(lane, Contracts([(0, contracts.entries()[-1][1])]))


def denied_when_it_is_read() -> AbstractContextManager[Any]:
    """Rule 2: a record is read as invalid by the settings of the node that reads it."""

    def judged(lane: Lane, row: PolledRecord, entry: Entry) -> Entry:
        denied = None if entry[1] != SCHEDULE else lane.settler.denial(entry[4][0])
        if denied is None:
            return entry
        return (row[0], INVALID, 0, None, (row[2], row[3], row[4] or []), denied)

    def ingest(original: Any, lane: Lane, run: PolledBatch) -> int:
        read_batch = lane.reader.read_batch

        def wrong(rows: Sequence[PolledRecord]) -> list[Entry]:
            return [judged(lane, *one) for one in zip(rows, read_batch(rows), strict=True)]

        with patch.object(lane.reader, "read_batch", wrong):
            return int(original(lane, run))

    return replaced(Lane, "ingest", ingest)


@mistake(Lane, "adopt")
def label_is_ignored(original: Any, lane: Lane, contracts: Contracts) -> None:
    """Rule 2: after a restart, a store is taken for filled by the contracts that hold now."""
    if not lane._is_adopted:
        lane.contracts = contracts
        lane._label.known = Label(contracts, lane._label.fingerprints, has_refused=False)
    original(lane, contracts)


def any_secret_will_do() -> AbstractContextManager[Any]:
    """A node with a wrong secret stores past the copies that it refuses, and serves with the right
    one what it has then.
    """

    def doubt(original: Any, label: Label, stop: int, contracts: Contracts, _: Any) -> str:
        return str(original(label, stop, contracts, label.secrets))

    return together(
        patch("delayservice.slices.follow.check_secret", lambda *_: None),
        replaced(Label, "doubt", doubt),
    )


def store_is_kept_over_a_change() -> AbstractContextManager[Any]:
    """Rule 2: a store that was filled by other contracts is only labelled anew."""
    return patch.object(StoreLabel, "is_read_otherwise", lambda *_: False)


def contracts_dropped_too_early() -> AbstractContextManager[Any]:
    """Rule 2: contracts are dropped although the log holds records that were written under them."""
    return replaced(Contracts, "needed_from", lambda _, held, __: Contracts(held.entries()[-1:]))


@mistake(Contracts, "extended")
def contract_begins_below_the_end(
    original: Any, held: Contracts, end: int, wanted: Contract, _: int
) -> Any:
    """Rule 2: a new contract is for records as well that were written before it."""
    return original(held, max(end - 3, 1), wanted)


@mistake(Contracts, "extended")
def begun_contract_gives_way(
    _: Any, held: Contracts, end: int, wanted: Contract, ahead: int
) -> Contracts:
    """Rule 2: the last contract is dropped for the wanted one, whether or not it has begun."""
    entries = held.entries()
    kept = entries[:-1] if len(entries) > 1 else entries
    return Contracts((*kept, (max(end + ahead, kept[-1][0] + 1), wanted)))


@mistake(Shard, "commit")
def marks_dropped_too_early(original: Any, shard: Shard) -> None:
    """Rule 8: marks are dropped as they are stored, and not when H passes them."""
    original(shard)
    victims = shard.walk.victims
    for mark in [mark for mark in victims if mark < shard.stored]:
        del victims[mark]


def tail_visible_after_crash() -> AbstractContextManager[Any]:
    """Rule 4: what lies above the horizon is used before it is stored again."""

    def visible(_: Any, store: SimStore) -> list[Frame]:
        return sorted(
            (key_ms, offset, store._marks.get(offset, (NO_MARK, 0))[0], payload)
            for offset, (key_ms, payload) in store._frames.items()
        )

    def marked_from(_: Any, store: SimStore, mark: int) -> list[tuple[int, Key]]:
        return sorted(
            (found, (key_ms, offset))
            for offset, (found, key_ms) in store._marks.items()
            if found >= mark and offset in store._frames
        )

    def latest_unmarked(_: Any, store: SimStore, name: bytes, _below: int) -> Key | None:
        names = store._named.get(name, {})
        for offset in sorted(names, reverse=True):
            if offset not in store._marks:
                return (names[offset], offset)
        return None

    return together(
        replaced(SimStore, "_visible", visible),
        replaced(SimStore, "marked_from", marked_from),
        replaced(SimStore, "latest_unmarked", latest_unmarked),
    )


def checkpoint_before_fencing() -> AbstractContextManager[Any]:
    """Rule 7: the checkpoint is read before the old owners are fenced."""
    early: dict[int, bytes | None] = {}

    def confirm(original: Any, client: KafkaTakeOverClient, slices: Any) -> Any:
        early.update(read(client, slices))
        return original(client, slices)

    def read_early(_: Any, __: KafkaTakeOverClient, slices: Any) -> dict[int, bytes | None]:
        return {slice_no: early[slice_no] for slice_no in slices}

    read = KafkaTakeOverClient.read_to_end
    return together(
        replaced(KafkaTakeOverClient, "confirm", confirm),
        replaced(KafkaTakeOverClient, "read_to_end", read_early),
    )


@mistake(Shard, "take_over")
def walk_starts_at_stored(original: Any, shard: Shard, *args: Any) -> None:
    """Rule 7: what lies in [H, S) is not walked again."""
    original(shard, *args)
    shard.read = max(shard.read, shard.stored)


def marked_is_delivered() -> AbstractContextManager[Any]:
    """Rule 5: a mark that H has passed is not looked at."""
    return rewritten(Shard, "advance_key", "if not 0 <= mark < h:", "if True:")


def late_record_skipped() -> AbstractContextManager[Any]:
    """Rule 9: a record that came late is taken for settled."""
    right = "if not 0 <= x < offset:"
    wrong = "if not 0 <= x < offset and (kind != SCHEDULE or record_id is not None):"
    return rewritten(OffsetAdvance, "take", right, wrong)


@mistake(Shard, "_queue_for_walk")
def dead_copy_delivered(original: Any, shard: Shard, *args: Any) -> None:
    """Rule 9: a late copy that is dead on arrival is settled again."""
    original(shard, *args)
    shard.walk.canceller_of.clear()


def early_after_clock_back() -> AbstractContextManager[Any]:
    """Rule 9: a late record is delivered although the clock stepped back behind its due time."""
    right, wrong = "payload, now_ms, base)\n", "payload, max(now_ms, key_ms), base)\n"
    return rewritten(Settler, "settle", right, wrong)


@mistake(ownership, "lose_writer")
def abort_after_uncertain_commit(original: Any, state: LoopState, lost: OwnershipLostError) -> None:
    """Rule 11: a writer whose commit had no answer aborts."""
    with suppress(KafkaEdgeError):
        state.edges.sink.abort()
    original(state, lost)


@mistake(commit_module, "end_commit")
def uncertain_taken_for_committed(original: Any, state: LoopState, ended: CommitEnded) -> Any:
    """Rule 11: no answer is taken for a yes."""
    if isinstance(ended.timing.exception(), OwnershipLostError):
        timing: Future[Timing] = Future()
        timing.set_result(Timing(0.0, None))
        ended = ended._replace(timing=timing)
    return original(state, ended)


@mistake(Requeuer, "requeue")
def base_one_too_high(original: Any, requeuer: Requeuer, *args: Any) -> Any:
    """Rule 12: the base of a copy is one too high."""
    kind, offset, payload, at_ms, base, *rest = args
    return original(requeuer, kind, offset, payload, at_ms, base + 1, *rest)


def no_scan_back() -> AbstractContextManager[Any]:
    """Rule 13: a canceller that was read in an earlier life is not looked for."""

    def resolve(original: Any, shard: Shard, named: Sequence[Any], scanned: Any) -> Any:
        missing = {entry[0]: NO_MARK for _, entry in named}
        return original(shard, named, missing | dict(scanned))

    return together(
        patch.object(Shard, "scans_needed", _observe_only),
        replaced(Shard, "_resolve", resolve),
    )


def _observe_only(shard: Shard, start: int, entries: Sequence[Entry], stop: int) -> list[Any]:
    shard._names.observe(start, bearing_ids(entries), stop)
    return []


@mistake(Shard, "advance_key")
def held_is_skipped(original: Any, shard: Shard, *args: Any) -> list[Output]:
    """K goes on behind a record that has to wait."""
    outputs: list[Output] = original(shard, *args)
    shard.is_held = False
    return outputs


def added_lane_in_checkpoint() -> AbstractContextManager[Any]:
    """A checkpoint names a shard that was added to an owned slice and is not taken over yet."""
    return rewritten(Slice, "checkpoint", " if lane.shard.owned}", "}")


@mistake(Slice, "checkpoint")
def unserved_cursor_dropped(original: Any, slice_: Slice, *args: Any) -> Any:
    """A checkpoint names only the shards that its writer serves."""
    slice_._unserved = {t: s for t, s in slice_._unserved.items() if t in slice_.lanes}
    return original(slice_, *args)


# --- how a slice changes its owner ---------------------------------------------------------------


def _wrong_names(
    wrong: Callable[[Claimed, Tenure | None, str], frozenset[str]],
) -> AbstractContextManager[Any]:
    return patch("delayservice.slices.take_over.names_to_fence", wrong)


def latest_claim() -> AbstractContextManager[Any]:
    """Claims count from the newest claim of the last writer, not from the one it served under."""

    def names(claimed: Claimed, tenure: Tenure | None, me: str) -> frozenset[str]:
        if tenure is not None and tenure.writer in claimed.before:
            last = claimed.before[tenure.writer]
            if not last.is_release:
                tenure = Tenure(tenure.writer, max(tenure.claim, last.offset))
        return names_to_fence(claimed, tenure, me)

    return _wrong_names(names)


def no_fence() -> AbstractContextManager[Any]:
    """The old owners are trusted to be dead."""
    return patch.object(KafkaTakeOverClient, "fence", lambda *_: None)


def claim_last() -> AbstractContextManager[Any]:
    """Names and checkpoints are read before the claim is committed."""

    def follow(original: Any, state: LoopState) -> None:
        claiming = {n for n, one in state.slices.items() if one.phase is Phase.CLAIMING}
        original(state)
        client, me = state.edges.take_over_client, state.writer.name
        assert isinstance(client, KafkaTakeOverClient)
        early: dict[int, bytes | None] = {}
        for number, slice_ in state.slices.items():
            if slice_.phase is Phase.CLAIMING and number not in claiming:
                with suppress(KafkaEdgeError):
                    client._checkpoints.tail(0)
                    words = client._checkpoints._claims._words.get(number, {})
                    before = {name: word for name, word in words.items() if name != me}
                    newest = client.newest(number)
                    tenure = decode_checkpoint(newest).tenure if newest is not None else None
                    client.fence(names_to_fence(Claimed(0, before), tenure, me))
                    early |= client.read_to_end([number])
        client.__dict__["early"] = client.__dict__.get("early", {}) | early

    def read_early(original: Any, client: KafkaTakeOverClient, slices: Any) -> Any:
        early = client.__dict__.get("early", {})
        found = original(client, slices)
        return {number: early.get(number, found[number]) for number in slices}

    return together(
        replaced(ownership, "follow_roles", follow),
        replaced(KafkaTakeOverClient, "read_to_end", read_early),
        _wrong_names(lambda *_: frozenset()),
    )


@mistake(KafkaTakeOverClient, "read_to_end")
def to_own_claim(original: Any, client: KafkaTakeOverClient, slices: Any) -> Any:
    """Checkpoints are read as far as there were some when the own claim was written."""
    original(client, slices)
    found = {}
    log = _log_of(client)
    for number in slices:
        claimed = client._checkpoints._claims.claimed(number)
        serial = 0
        if claimed is not None:
            serial = log.partition(CLAIMS_PLACE).written[claimed.offset].serial
        before = [w for w in _checkpoints_of(log, number) if w.serial < serial]
        found[number] = before[-1].value if before else None
    return found


def _log_of(client: KafkaTakeOverClient) -> SimLog:
    log: SimLog = client._confirm.__self__.world.log  # type: ignore[attr-defined]
    return log


def _checkpoints_of(log: SimLog, slice_no: int) -> list[Written]:
    written = log.partition(checkpoint_place(slice_no)).written
    return [w for w in written if w.is_committed and w.key == b"%d" % slice_no]


def to_lso() -> AbstractContextManager[Any]:
    """Checkpoints are read as far as they can be, while somebody's transaction is open."""

    def ends(admin: Any, places: list[Place]) -> dict[Place, int]:
        stable = IsolationLevel.READ_COMMITTED
        return {(topic, n): log_bounds(admin, topic, n, stable).end for topic, n in places}

    return patch("connectors.kafka.take_over_client.log_ends", ends)


@mistake(KafkaTakeOverClient, "await_claims")
def committed_names(original: Any, client: KafkaTakeOverClient, slices: Any) -> Any:
    """A claim that is still open is overlooked."""
    found = _found(_read_past_open(client), slices)
    return found if len(found) == len(slices) else original(client, slices)


def _read_past_open(client: KafkaTakeOverClient) -> ClaimLog:
    """The claims as far as there are any, those of open transactions left out."""
    checkpoints = client._checkpoints
    claims = copy.deepcopy(checkpoints._claims)
    written = _log_of(client).partition(CLAIMS_PLACE).written
    for record in written[checkpoints._positions.get(CLAIMS_PLACE, 0) :]:
        if record.is_committed and not record.is_gone:
            with suppress(KafkaEdgeError):  # a stranger's
                claims.take(record.offset, record.key, record.value)
    return claims


def _found(claims: ClaimLog, slices: Any) -> dict[int, Claimed]:
    found = {number: claims.claimed(number, above) for number, above in slices.items()}
    return {number: claimed for number, claimed in found.items() if claimed is not None}


def last_only() -> AbstractContextManager[Any]:
    """Only the newest claimant is fenced."""

    def names(claimed: Claimed, tenure: Tenure | None, me: str) -> frozenset[str]:
        found = names_to_fence(claimed, tenure, me)
        last = max(found & claimed.before.keys(), key=lambda n: claimed.before[n], default=None)
        return found if last is None else frozenset([last])

    return _wrong_names(names)


@mistake(KafkaTakeOverClient, "await_claims")
def since_serve(original: Any, client: KafkaTakeOverClient, slices: Any) -> Any:
    """Claims count from the last checkpoint, not from the claim that it was written under."""
    claims = dict(original(client, slices))
    log = _log_of(client)
    words = log.partition(CLAIMS_PLACE).written
    for number, claimed in claims.items():
        served = _checkpoints_of(log, number)
        start = served[-1].serial if served else 0
        before = {n: w for n, w in claimed.before.items() if words[w.offset].serial > start}
        claims[number] = Claimed(claimed.offset, before)
    return claims


@mistake(KafkaTakeOverClient, "await_claims")
def open_release(original: Any, client: KafkaTakeOverClient, slices: Any) -> Any:
    """A release is believed that is not committed, or never will be."""
    claims = dict(_await_hastily(client, slices) or original(client, slices))
    words = _log_of(client).partition(CLAIMS_PLACE).written
    for number, claimed in claims.items():
        before = dict(claimed.before)
        for word in words[: claimed.offset]:
            if not word.is_marker and word.value is not None and b'"release"' in word.value:
                whose, writer = decode_key(word.key)
                if whose == number and writer in before and before[writer].offset < word.offset:
                    before[writer] = ClaimState(before[writer].offset, is_release=True)
        claims[number] = Claimed(claimed.offset, before)
    return claims


def _await_hastily(client: KafkaTakeOverClient, slices: Any) -> dict[int, Claimed] | None:
    """Own claims as they will be read, if only releases are open below them."""
    partition = _log_of(client).partition(CLAIMS_PLACE)
    undecided = [
        w
        for w in partition.written[partition.last_stable :]
        if w.transaction is not None and w.transaction.state == OPEN
    ]
    if not undecided or any(b'"release"' not in (w.value or b"") for w in undecided):
        return None
    found = _found(_read_past_open(client), slices)
    return found if len(found) == len(slices) else None


def serve_after_release() -> AbstractContextManager[Any]:
    """A writer goes on with a slice that it has released."""

    def released(_: Any, state: LoopState, number: int) -> None:
        state.transaction.changing.discard(number)
        slice_ = state.slices.get(number)
        if slice_ is not None:
            slice_.phase = Phase.OWNER

    return together(
        replaced(ownership, "_released", released),
        patch.object(Roles, "role", lambda *_: Role.OWNER),
    )


@mistake(KafkaTakeOverClient, "await_claims")
def stale_claim(original: Any, client: KafkaTakeOverClient, slices: Any) -> Any:
    """A claim that was released counts when the slice is claimed again."""
    return original(client, dict.fromkeys(slices, -1))


# --- what a client says, and what follows from it -------------------------------------------------


@mistake(KafkaSink, "_commit_transaction")
def no_answer_is_abortable(original: Any, sink: KafkaSink, producer: Any) -> None:
    """A commit without an answer is aborted."""
    try:
        original(sink, producer)
    except OwnershipLostError as lost:
        cause = lost.__cause__
        if isinstance(cause, KafkaException) and cause.args[0].retriable():
            sink._fail("no answer")
        raise


def failed_connection_is_ignored() -> AbstractContextManager[Any]:
    """Rule 15: a writer whose client may have sent a commit twice is used again."""
    return patch("connectors.kafka.sink.connection_failure", lambda *_: "")


def aborted_writer_is_used_again() -> AbstractContextManager[Any]:
    """Rule 15: a writer begins another transaction after an abort."""

    def abort(original: Any, sink: KafkaSink) -> Any:
        kept = None if sink._producer is None else (sink._producer, sink._headers)
        waiting = original(sink)
        sink.kept = kept  # type: ignore[attr-defined]
        return waiting

    def open_again(original: Any, sink: KafkaSink) -> Any:
        kept = getattr(sink, "kept", None)
        sink.kept = None  # type: ignore[attr-defined]
        if kept is None:
            return original(sink)
        sink._producer, sink._headers = kept
        return kept[1][0][1].decode()

    return together(
        replaced(KafkaSink, "_abort", abort),
        replaced(KafkaSink, "open", open_again),
        failed_connection_is_ignored(),
    )


def tombstone_is_ignored() -> AbstractContextManager[Any]:
    """A slice whose checkpoint something else deleted counts as never served."""
    return patch.object(KafkaCheckpoints, "alarm", lambda *_: "")


def other_slices_checkpoint_is_followed() -> AbstractContextManager[Any]:
    """The tail and a follower believe whatever lies under the key of a slice."""
    return together(
        patch("connectors.kafka.checkpoints.standing_of", lambda *_: UNKNOWN_STANDING),
        patch(
            "delayservice.slices.follow.decode_checkpoint_of",
            lambda _, data: decode_checkpoint(data),
        ),
    )


@mistake(KafkaCheckpoints, "__init__")
def tail_reads_uncommitted(
    original: Any, checkpoints: KafkaCheckpoints, *args: Any, **options: Any
) -> None:
    """Checkpoints and claims are read that are not committed, or never will be."""
    original(checkpoints, *args, **options)
    checkpoints._config["isolation.level"] = "read_uncommitted"


@mistake(KafkaCheckpoints, "_search_earlier")
def earlier_is_not_searched(_: Any, checkpoints: KafkaCheckpoints) -> None:
    """A checkpoint that lies before what is read first counts as missing."""
    checkpoints._is_searched = True


def blocker_is_waited_for() -> AbstractContextManager[Any]:
    """A dead writer's open transaction holds a take-over up until it times out."""
    return patch.object(KafkaTakeOverClient, "_fence_blocker", lambda *_: -1)


def bad_targets_are_forgotten() -> AbstractContextManager[Any]:
    """What the broker says of a target is not remembered."""
    return together(
        patch.object(TargetTopics, "forget", lambda *_: None),
        patch.object(TargetTopics, "give_up", lambda *_: None),
    )


def any_clock_is_believed() -> AbstractContextManager[Any]:
    """Records are settled by a clock that left the one of the machine, or of the broker."""
    return patch.object(ClockWatch, "doubt", lambda _: None)


def last_due_first() -> AbstractContextManager[Any]:
    """What is due is sent in any order."""
    return rewritten(Shard, "advance_key", "return outputs", "return outputs[::-1]")


@mistake(KafkaSource, "_take_event")
def end_is_no_stop(
    original: Any, source: KafkaSource, place: Any, message: Any, *rest: Any
) -> None:
    """A position moves with records only, never past markers and what was aborted."""
    error, stops, ended = rest
    original(source, place, message, error, {}, ended)
    del stops


def pause_outlives_its_consumer() -> AbstractContextManager[Any]:
    """A partition that is paused stays so in the consumer that reads it no longer."""
    return rewritten(KafkaSource, "_unassign", "place in self._held", "False")


def batches_grow_again() -> AbstractContextManager[Any]:
    """What a topic takes at most is not remembered."""
    return patch.object(TargetLimits, "learn", lambda *_: False)


# --- fire and recurring schedules ----------------------------------------------------------------


def fire_overlaps_roll() -> AbstractContextManager[Any]:
    """H passes a fire whose victim's copy has not come back from the log yet."""
    right, wrong = "if self._awaits_copy(", "if kind != FIRE and self._awaits_copy("
    return rewritten(OffsetAdvance, "take", right, wrong)


@mistake(OffsetAdvance, "_fire_victims")
def fire_forgets_before_commit(original: Any, walk: OffsetAdvance, offset: int, *args: Any) -> Any:
    """What a fire hit is forgotten as soon as it is staged: after an abort nobody knows of it."""
    outputs = original(walk, offset, *args)
    walk.victims.pop(offset, None)
    return outputs


def fired_is_delivered_again() -> AbstractContextManager[Any]:
    """A record that a fire marked is delivered when it is due, too."""

    def ingest(original: Any, shard: Shard, start: int, entries: Any, *args: Any) -> Additions:
        added: Additions = original(shard, start, entries, *args)
        fires: set[int] = getattr(shard, "fires", set())
        shard.fires = fires  # type: ignore[attr-defined]
        fires.update(entry[0] for entry in entries if entry[1] == FIRE)
        return added

    def advance_key(original: Any, shard: Shard, frames: Sequence[Frame], now_ms: int) -> Any:
        fires: set[int] = getattr(shard, "fires", set())
        bare = [
            (key_ms, offset, NO_MARK if mark in fires else mark, data)
            for key_ms, offset, mark, data in frames
        ]
        return original(shard, bare, now_ms)

    return together(replaced(Shard, "ingest", ingest), replaced(Shard, "advance_key", advance_key))


def fire_is_always_done() -> AbstractContextManager[Any]:
    """A fire says ``fired`` whatever it met."""
    wrong = "if victims or _OUTCOMES[kind] == outcome.FIRED else outcome.NOT_PENDING"
    right = "if victims else outcome.NOT_PENDING"
    return rewritten(OffsetAdvance, "_act_at_home", right, wrong)


def fired_and_parked_waits() -> AbstractContextManager[Any]:
    """What was fired while its target was missing waits for its due time after all."""
    return patch("delayservice.engine.settle.was_tried", lambda _: False)


def fire_ends_the_series() -> AbstractContextManager[Any]:
    """An occurrence that is fired has none after it."""
    return rewritten(Settler, "following", "not in _SENT", "not in (outcome.DELIVERED,)")


def recurred_base_too_high() -> AbstractContextManager[Any]:
    """The base of the next occurrence is one too high."""
    return rewritten(Settler, "following", "base, CONTINUES", "base + 1, CONTINUES")


def recurred_base_too_low() -> AbstractContextManager[Any]:
    """The next occurrence is hit again by what took effect before it."""
    return rewritten(Settler, "following", "base, CONTINUES", "offset + 1, CONTINUES")


def recurred_is_not_in_flight() -> AbstractContextManager[Any]:
    """Nobody waits for the next occurrence on its way back from the log."""
    return patch.object(outcome, "COPIES", outcome.COPIES - {outcome.RECURRED})


def recurred_settles() -> AbstractContextManager[Any]:
    """The next occurrence counts as a settlement of the one before."""
    return patch("delayservice.engine.settle.CONTINUES", None)


def next_from_now() -> AbstractContextManager[Any]:
    """A period begins when the occurrence is delivered, not when it was due."""
    right, wrong = "due_ms + (missed + 1) * recurrence.every_ms", "now_ms + recurrence.every_ms"
    return rewritten(recurrence_module, "_next_ms", right, wrong)


@mistake(recurrence_module, "_next_ms")
def missed_are_caught_up(original: Any, recurrence: Any, due_ms: int, _: int, *args: Any) -> Any:
    """After an outage, every occurrence that was missed is delivered."""
    return original(recurrence, due_ms, due_ms, *args)


def one_occurrence_too_many() -> AbstractContextManager[Any]:
    """The last occurrence has one after it."""
    return rewritten(settle_module, "following", " or recurrence.left == 1", "")


@mistake(Settler, "_arm")
def begins_at_once(
    original: Any, settler: Settler, offset: int, payload: Payload, *args: Any
) -> Output | None:
    """A cron schedule is delivered when it is written, too."""
    settled: Output | None = original(settler, offset, payload, *args)
    if settled is None or settled[0] != outcome.ROLLED:
        return settled
    target, partition, key, value, headers, due_ms, meta = payload
    sent = headers + settler.provenance.headers(offset, due_ms, meta)
    return (outcome.DELIVERED, target, partition, key, value, sent, due_ms, offset)


# --- logs that lose their end, topics made anew, at least once -----------------------------------


@mistake(Lane, "_fit_to_log")
def names_are_forgotten(original: Any, lane: Lane, cursor: Cursor, bounds: Bounds) -> Cursor:
    """What unread records may have settled counts as settled."""
    start, marks = bounds.start, []
    if lane.shard.stored >= start:
        return cast("Cursor", original(lane, cursor, bounds))
    for key_ms, offset, mark, data in lane.store.scanner().frames((0, 0), DUE_STOP_MS):
        meta = decode_payload(data)[6]
        if mark == NO_MARK and meta is not None and meta[0] is not None:
            marks.append((meta[0], key_ms, offset, start - 1))
    fit = cast("Cursor", original(lane, cursor, bounds))
    lane.store.append([], [], marks, start)
    return fit


@mistake(Lane, "checkpoint")
def loss_is_not_told(original: Any, lane: Lane) -> ShardCheckpoint:
    """H goes over the start of the log, and the checkpoint does not say so."""
    said: ShardCheckpoint = original(lane)
    return dataclasses.replace(said, lost=())


@mistake(Shard, "take_over")
def lost_controls_are_carried_out(original: Any, shard: Shard, *args: Any) -> None:
    """H skips marks whose records the log has lost: what they mark counts as settled."""
    original(shard, *args)
    shard._queue.clear()


@mistake(Lane, "refit")
def truncation_is_ignored(original: Any, lane: Lane, bounds: Bounds, **_: Any) -> None:
    """A log that is as long as it was is taken for the same log."""
    lane._fetch.position = -1
    original(lane, bounds)


@mistake(LogProof, "take_over")
def leader_is_not_asked(original: Any, proof: LogProof, *args: Any) -> None:
    """A new owner settles what it has stored, whoever leads the partition by now."""
    original(proof, *args)
    proof.is_unproved = False


def short_log_is_believed_at_once() -> AbstractContextManager[Any]:
    """An end below H is taken for a loss when it is told for the first time."""
    return patch("delayservice.slices.log_ends.is_short", lambda *_: False)


@mistake(Lane, "take_over")
def epoch_is_not_committed(
    original: Any, lane: Lane, cursor: Cursor, bounds: Bounds, *_: Any
) -> None:
    """H stays where it was, above what was written in place of lost records."""
    original(lane, cursor, bounds)


def level_log_is_taken_for_the_same() -> AbstractContextManager[Any]:
    """A level topic is read from H on, whatever was written below it meanwhile."""
    return patch.object(LevelProof, "begin", lambda _, offset, *__: offset)


def recreated_topic_keeps_its_cursor() -> AbstractContextManager[Any]:
    """Topics are known by their names."""

    def wrong(lane: Any, known: ShardCheckpoint | None, *args: Any) -> None:
        if known is not None:
            known = dataclasses.replace(known, topic_id=lane.topic_id)
        take_over_lane(lane, known, *args)

    return patch("delayservice.slices.ownership.take_over_lane", wrong)


@mistake(KafkaSink, "_produce")
def direct_is_sent_twice(
    original: Any, sink: KafkaSink, producer: Any, place: Any, outputs: list[Any]
) -> None:
    """At least once: more often than take-overs explain."""
    original(sink, producer, place, outputs * 2 if producer is sink._direct else outputs)


@mistake(KafkaSink, "_flush")
def direct_is_not_awaited(original: Any, sink: KafkaSink, producer: Any) -> None:
    """At least once: the checkpoint is committed before the targets have their records."""
    if producer is not sink._direct:
        original(sink, producer)
