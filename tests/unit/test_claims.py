"""Claims, whose transactions an heir has to end before it reads, and checkpoints."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from unittest.mock import Mock, create_autospec, patch

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from connectors.kafka import checkpoints
from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.clients import Clients
from connectors.kafka.sink import WriterOptions
from connectors.kafka.take_over_client import FENCE_TIMEOUT_S, KafkaTakeOverClient
from delayservice.base.clock import SystemClock
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.checkpoint import (
    UNKNOWN_STANDING,
    Checkpoint,
    ForeignRecordError,
    LastRead,
    Lost,
    ShardCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
    fingerprint,
    longest_waits_ms,
    standing_of,
)
from delayservice.engine.claims import (
    CLAIM,
    RELEASE,
    Claimed,
    ClaimLog,
    ClaimState,
    Tenure,
    decode_key,
    encode_key,
    encode_word,
    names_to_fence,
)
from delayservice.engine.cursor import Cursor
from delayservice.engine.ports import PolledBatch, ReadBack
from delayservice.slices import take_over as taking_over

SLICE = 3
ME = "me"


class Topic:
    """The claims topic as one node reads it."""

    def __init__(self, me: str = ME) -> None:
        self.log = ClaimLog()
        self.log.enter(me)
        self.end = 0

    def say(self, writer: str, word: str | None = CLAIM, slice_no: int = SLICE) -> int:
        """Append a word, or a tombstone; return its offset."""
        value = None if word is None else encode_word(slice_no, writer, "n", word, self.end)
        self.log.take(self.end, encode_key(slice_no, writer), value)
        self.end += 1
        return self.end - 1

    def to_fence(self, tenure: Tenure | None = None) -> set[str]:
        """Whom the own newest claim has to fence."""
        claimed = self.log.claimed(SLICE)
        assert claimed is not None
        names = taking_over.names_to_fence  # type: ignore[attr-defined]  # where mutations patch it
        return set(names(claimed, tenure, ME))


# --- the mistakes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "last", "fenced"),
    [
        # Its newest claim says too little: it released and claimed again meanwhile.
        pytest.param("old -old between old me", "old", {"old", "between"}, id="latest_claim"),
        pytest.param("old me", "old", {"old"}, id="no_fence, however dead it looks"),
        pytest.param("a b c me", None, {"a", "b", "c"}, id="last_only"),
        # ``b`` claimed while ``a`` served: ``a`` wrote checkpoints after that, under its own claim.
        pytest.param("a b me", "a", {"a", "b"}, id="since_serve"),
        pytest.param("long-ago a me", "a", {"a"}, id="fenced by the last writer already"),
        pytest.param("old me -old", "old", {"old"}, id="open_release"),
        pytest.param("old -old me", "old", set(), id="a release below the own claim"),
        pytest.param("old -old old me", "old", {"old"}, id="serve_after_release"),
        pytest.param("a b -b me", None, {"a"}, id="no checkpoint"),
    ],
)
def test_every_writer_that_may_still_write_is_fenced(
    said: str, last: str | None, fenced: set[str]
) -> None:
    # Claims, and releases with a minus. ``last`` wrote the last checkpoint under its first.
    topic, first = Topic(), dict[str, int]()
    for word in said.split():
        name = word.removeprefix("-")
        offset = topic.say(name, CLAIM if name == word else RELEASE)
        first.setdefault(name, offset)
    assert topic.to_fence(None if last is None else Tenure(last, first[last])) == fenced


def test_the_last_checkpoints_writer_is_fenced_without_a_claim() -> None:
    assert names_to_fence(Claimed(9, {}), Tenure("old", 4), ME) == {"old"}
    assert names_to_fence(Claimed(9, {}), Tenure(ME, 4), ME) == frozenset()
    assert (
        names_to_fence(Claimed(9, {"old": ClaimState(7, is_release=True)}), Tenure("old", 4), ME)
        == frozenset()
    )


# --- the log ------------------------------------------------------------------------------------


def test_the_claims_of_an_earlier_own_writer_are_those_of_another() -> None:
    topic = Topic("w1")
    topic.say("w1")
    topic.log.enter("w2")
    assert topic.log.claimed(SLICE) is None
    topic.say("w2")
    found = topic.log.claimed(SLICE)
    assert found is not None
    assert names_to_fence(found, None, "w2") == {"w1"}


def test_a_tombstone_forgets_a_writer_and_only_of_its_slice() -> None:
    topic = Topic()
    topic.say("old")
    topic.say("old", slice_no=4)
    topic.say("old", None)
    topic.say("never seen", None)
    topic.say(ME)
    topic.say(ME, slice_no=4)
    assert topic.to_fence() == set()
    other = topic.log.claimed(4)
    assert other is not None
    assert other.before.keys() == {"old"}


def test_slices_have_claims_of_their_own() -> None:
    topic = Topic()
    topic.say("other", slice_no=4)
    topic.say(ME)
    assert topic.to_fence() == set()
    assert topic.log.claimed(4) is None


KEYS = [None, b"", b"3", b"3:", b":w", b"x:w", b"-1:w", b"9" * 5_000 + b":w"]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        *((key, encode_word(SLICE, "x", "n", CLAIM, 0), "restrict the topic") for key in KEYS),
        *(
            (encode_key(SLICE, "other"), value, why)
            for value, why in [
                (b"not json", "can't be read"),
                (b"[]", "can't be read"),
                (b'{"v":1}', "can't be read"),
                (b'{"v":1,"word":"\xff"}', "can't be read"),
                (b'{"v":1,"word":[]}', "can't be read"),
                (b'{"v":1,"word":"claim","turn":"2"}', "can't be read"),
                (b'{"v":2,"word":"claim","turn":2}', "upgrade this node"),
                (b'{"v":1,"word":"claim"}', "can't be read"),
                (b'{"v":1,"word":"borrow","turn":2}', "upgrade this node"),
            ]
        ),
    ],
)
def test_an_unreadable_claim_changes_nothing(key: bytes | None, value: bytes, why: str) -> None:
    topic = Topic()
    topic.say("other")
    with pytest.raises(KafkaEdgeError, match=why):
        topic.log.take(topic.end, key, value)
    topic.end += 1
    topic.say(ME)
    assert topic.to_fence() == {"other"}


def test_a_key_is_read_as_it_was_written_whatever_the_writer_is_called() -> None:
    for writer in ("delayservice-n1-0-5c", "a:b:c", "ü"):
        assert decode_key(encode_key(17, writer)) == (17, writer)


def test_a_word_that_cannot_be_read_counts_as_a_claim() -> None:
    log = ClaimLog()
    log.enter("me")
    with pytest.raises(KafkaEdgeError):
        log.take(3, encode_key(7, "newer"), b'{"v":9,"word":"lease"}')
    log.take(4, encode_key(7, "me"), encode_word(7, "me", "n1", CLAIM, 1))
    claimed = log.claimed(7)
    assert claimed is not None
    assert names_to_fence(claimed, None, "me") == {"newer"}


# --- checkpoints as they lie in the topic, their order, and what their reader answers -------------


CONTRACTS = Contracts([(0, Contract()), (40, Contract(clamp=True))])
SHARDS = {"delay_topic_any": ShardCheckpoint("id", Cursor((5, 7), 42), CONTRACTS)}


def checkpoint(tenure: Tenure) -> Checkpoint:
    return Checkpoint(3, "n1", 7, fingerprint(b"secret"), SHARDS, 42, tenure)


def test_a_checkpoint_reads_as_written() -> None:
    tenure = Tenure("delayservice-n1-0-5c", 17)
    data = encode_checkpoint(checkpoint(tenure))
    assert decode_checkpoint(data) == checkpoint(tenure)
    assert data == (
        b'{"v":1,"slice":3,"node":"n1","writer":"delayservice-n1-0-5c","claim":17,"epoch":7,'
        b'"commit":42,"secret":"%b","shards":{"delay_topic_any":{"topic_id":"id","k":[5,7],"h":42,'
        b'"contracts":%b}}}' % (fingerprint(b"secret").encode(), CONTRACTS.encode())
    )


def test_a_checkpoint_holds_the_last_read_record_if_it_is_known() -> None:
    shard = replace(SHARDS["delay_topic_any"], last_read=LastRead(5, 77))
    said = replace(checkpoint(Tenure("w", 17)), shards={"delay_topic_any": shard})
    raw = json.loads(encode_checkpoint(said))
    assert raw["v"] == 1
    assert raw["shards"]["delay_topic_any"]["last"] == [5, 77]
    assert decode_checkpoint(encode_checkpoint(said)) == said
    del raw["shards"]["delay_topic_any"]["last"]  # not known
    assert decode_checkpoint(json.dumps(raw).encode()) == checkpoint(Tenure("w", 17))
    assert json.loads(encode_checkpoint(checkpoint(Tenure("w", 17)))) == raw


def test_a_checkpoint_names_its_writer_and_the_claim_under_which_it_served() -> None:
    raw = json.loads(encode_checkpoint(checkpoint(Tenure("w", 17))))
    assert (raw["v"], raw["writer"], raw["claim"]) == (1, "w", 17)
    assert (raw["slice"], raw["epoch"], raw["commit"]) == (3, 7, 42)
    assert raw["shards"]["delay_topic_any"]["h"] == 42


def test_a_newer_version_is_not_guessed_at() -> None:
    data = encode_checkpoint(checkpoint(Tenure("w", 1))).replace(b'"v":1', b'"v":2')
    with pytest.raises(KafkaEdgeError, match=r"version 2, .* version 1: upgrade this node"):
        decode_checkpoint(data)


@pytest.mark.parametrize("lacks", ["writer", "claim", "commit", "slice", "secret", "shards"])
def test_a_checkpoint_that_lacks_something_is_none(lacks: str) -> None:
    raw = json.loads(encode_checkpoint(checkpoint(Tenure("w", 1))))
    del raw[lacks]
    with pytest.raises(KafkaEdgeError, match="no checkpoint"):
        decode_checkpoint(json.dumps(raw).encode())


FOREIGN = b'{"v":1,"slice":1,"node":"n","epoch":1,"secret":"s","shards":[]}'


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b'"v"', b'"\xff"', FOREIGN])
def test_a_foreign_checkpoint_is_reported_by_writer(data: bytes) -> None:
    with pytest.raises(KafkaEdgeError, match="something else writes"):
        decode_checkpoint(data)


def test_how_long_a_log_must_keep_records_follows_from_all_contracts_in_force() -> None:
    def slice_of(number: int, *windows_ms: int) -> bytes:
        contracts = [(n, Contract(roll_window_ms=ms)) for n, ms in enumerate(windows_ms)]
        level = Contracts([(0, Contract(level_ms=5_000))])
        shards = {
            "delay_topic_any": ShardCheckpoint("id", Cursor(), Contracts(contracts)),
            "delay_topic_1": ShardCheckpoint("id", Cursor(), level),
        }
        return encode_checkpoint(Checkpoint(number, "n1", 1, "", shards, 1, Tenure("w", 0)))

    foreign = [b"{}", b"foreign", b"\xff", b'"\xff"', b'{"shards":[1]}', b'{"shards":{"t":1}}']
    waits = (b"7", b'{"level_ms":[9]}', b'{"roll_window_ms":"x"}', b'{"roll_window_ms":{}}')
    foreign += [b'{"shards":{"t":{"contracts":[{"contract":%b}]}}}' % one for one in waits]
    found = longest_waits_ms([slice_of(0, 60_000, 7_000), slice_of(1, 9_000), *foreign])
    assert found == {"delay_topic_any": 60_000, "delay_topic_1": 5_000}


def test_lost_ranges_come_back_and_take_no_room_where_there_are_none() -> None:
    shard = ShardCheckpoint("id", Cursor(), Contracts([(0, Contract())]))
    assert b'"lost"' not in encode_checkpoint(
        Checkpoint(0, "n1", 1, "", {"t": shard}, 1, Tenure("w", 0))
    )
    lossy = replace(shard, lost=(Lost(3, 9), Lost(20, 31)))
    data = encode_checkpoint(Checkpoint(0, "n1", 1, "", {"t": lossy}, 1, Tenure("w", 0)))
    assert decode_checkpoint(data).shards["t"].lost == lossy.lost


# --- which records of the checkpoint topic can be a slice's checkpoint, and in which order --------


SHARD_OF_FOUR = {
    "delay_topic_any": ShardCheckpoint("id", Cursor((5, 6), 7), Contracts([(0, Contract())]))
}


def written(epoch: int = 3, commit: int = 9) -> bytes:
    tenure = Tenure("writer", 17)
    return encode_checkpoint(Checkpoint(4, "n1", epoch, "secret", SHARD_OF_FOUR, commit, tenure))


def test_a_checkpoint_is_believed() -> None:
    assert standing_of(4, written()) == (3, 9)
    assert standing_of(4, written().replace(b'"version":1', b'"version":99')) == (3, 9)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "no checkpoint"),
        (b"\xff\x00", "no checkpoint"),
        (b"[]", "no checkpoint"),
        (b'{"v":1}', "no checkpoint"),
        (written()[:-5], "no checkpoint"),
        (written().replace(b'"h":7', b'"h":"7"'), "no checkpoint"),
        (written().replace(b'"h":7', b'"h":7,"last":7'), "no checkpoint"),
        (written().replace(b'"v":1', b'"v":0'), "no checkpoint"),
        (written().replace(b'"slice":4', b'"slice":5'), "a checkpoint of slice 5"),
    ],
)
def test_a_checkpoint_of_another_slice_is_not_used(data: bytes, what: str) -> None:
    with pytest.raises(ForeignRecordError, match=what):
        standing_of(4, data)


@pytest.mark.parametrize("data", [{"v": 2}, {**json.loads(written()), "v": 2}])
def test_a_newer_version_is_believed_for_newer_builds_to_follow(data: dict[str, object]) -> None:
    assert standing_of(4, json.dumps(data).encode()) == UNKNOWN_STANDING


@pytest.mark.parametrize(
    ("earlier", "later", "precedes"),
    [
        (written(3, 9), written(3, 10), True),
        (written(3, 9), written(4, 1), True),
        (written(3, 9), written(3, 9), False),
        (written(4, 1), written(3, 9), False),
        (written(4, 1).replace(b'"v":1', b'"v":2'), written(3, 9), False),
        (written(4, 1), written(3, 9).replace(b'"v":1', b'"v":2'), False),
    ],
)
def test_checkpoints_are_ordered_by_commit(earlier: bytes, later: bytes, *, precedes: bool) -> None:
    assert standing_of(4, earlier).precedes(standing_of(4, later)) is precedes


# --- what the tail of the checkpoint topic answers other threads ----------------------------------


OPTIONS = WriterOptions(
    name_prefix="n1",
    checkpoint_topic="checkpoints",
    checkpoint_partitions=1,
    claims_topic="claims",
    producer={},
    consumer={},
)


def test_a_slice_whose_doubt_ends_while_it_is_asked_for_does_not_begin_anew() -> None:
    tail = KafkaCheckpoints(OPTIONS, SystemClock(), "n1")
    tail._tailed[SLICE] = ReadBack(b"{}", 0, 0, 7)
    tail._foreign[SLICE] = (8, "a tombstone")

    def resolved(asked: KafkaCheckpoints, *_: int) -> bool:
        asked._foreign.clear()  # the owner has written its checkpoint again
        return True

    with (
        patch.object(KafkaCheckpoints, "_is_doubtful", resolved),
        pytest.raises(KafkaEdgeError, match="tried again"),
    ):
        tail.newest(SLICE, 1.0)


def test_earlier_checkpoints_are_added_only_while_no_other_thread_reads() -> None:
    tail = KafkaCheckpoints(OPTIONS, SystemClock(), "n1")
    tail._starts[0] = (0, 9)
    value = encode_checkpoint(Checkpoint(SLICE, "n1", 1, "secret", {}, 1, Tenure("writer", 1)))
    is_read = threading.Event()

    def scanned(*_: object) -> list[PolledBatch]:
        is_read.set()
        return [PolledBatch(("checkpoints", 0), 0, [(7, 0, b"%d" % SLICE, value, None)], 9)]

    with patch.object(checkpoints, "scan_partition", scanned):
        searching = threading.Thread(target=tail._search_earlier)
        with tail._changed:
            searching.start()
            assert is_read.wait(60)
            searching.join(0.1)
            assert not tail._tailed
        searching.join()
    assert tail.newest_of_all() == [value]


# --- the fence of a former writer of this process -------------------------------------------------

DECIDED = KafkaError.CONCURRENT_TRANSACTIONS


class SlowLink:
    """A producer, and its clock: it connects within ``connects_s``; then the coordinator's answers
    come, each from its time on, in s: an error code, or None: the writer is fenced.
    """

    def __init__(self, connects_s: float, answers: dict[float, int | None]) -> None:
        self.now_s = 0.0
        self._connects_s = connects_s
        self._answers = answers

    def list_topics(self, *_: object) -> None:
        self.now_s += self._connects_s / 2

    def init_transactions(self, timeout_s: float) -> None:
        # The client drops fractions of a millisecond, and none answers within one.
        until_s, code = self.now_s + int(timeout_s * 1_000) / 1_000, KafkaError._TIMED_OUT
        if timeout_s < 0.001:
            raise KafkaException(KafkaError(code, "", retriable=True))
        for at_s, answer in self._answers.items():
            if at_s <= until_s and answer is None:
                self.now_s = max(self.now_s, at_s)
                return
            if at_s <= until_s and answer is not None:
                code = answer
        self.now_s = until_s
        raise KafkaException(KafkaError(code, "", retriable=True))


@pytest.mark.parametrize(
    ("connects_s", "answers", "fenced_s"),
    [
        (1.2, {2.4: None}, 2.4),  # 100 ms for each of the round trips of SASL_SSL
        (1.2, {1.2: DECIDED}, 2.35),
        (1.2, {1.5: DECIDED}, 2.35),  # a second since an answer that was not yet that
        (0.0, {0.1: DECIDED, 0.5: KafkaError.NOT_COORDINATOR, 9.0: None}, 9.0),
        (1.2, {}, None),
    ],
)
def test_a_former_own_writer_is_fenced_by_a_second_of_concurrent_transactions_or_as_any_other(
    connects_s: float, answers: dict[float, int | None], fenced_s: float | None
) -> None:
    link = SlowLink(connects_s, answers)
    made = Mock(return_value=link)
    clients = Clients(producer=made, monotonic_s=lambda: link.now_s)
    tail, admin = create_autospec(KafkaCheckpoints), create_autospec(AdminClient)
    client = KafkaTakeOverClient(OPTIONS, tail, admin, frozenset, clients)
    client.enter("former")
    client.enter("writer")
    if fenced_s is None:
        with pytest.raises(KafkaEdgeError, match=r"writer former could not be fenced: [^;]*$"):
            client.fence(["former"])
        fenced_s = connects_s + FENCE_TIMEOUT_S
    else:
        client.fence(["former"])
    assert link.now_s == pytest.approx(fenced_s)
    made.assert_called_once_with(OPTIONS.transactional("former"))  # as ``check_options`` tries


def test_a_fence_that_is_forbidden_names_the_right_that_is_missing() -> None:
    link = SlowLink(0.0, {0.0: KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
    clients = Clients(producer=Mock(return_value=link), monotonic_s=lambda: link.now_s)
    tail, admin = create_autospec(KafkaCheckpoints), create_autospec(AdminClient)
    client = KafkaTakeOverClient(OPTIONS, tail, admin, frozenset, clients)
    with pytest.raises(KafkaEdgeError, match="needs Write on the transactional ids"):
        client.fence(["other"])
