"""Claims: whose transactions an heir has to end before it reads.

Each of the ten mistakes that ``protocol_model/ownership`` explores is named where a pure function
can make it; reading to the end and asking again are tested where they are done.
"""

from __future__ import annotations

import pytest

from delayservice.base.errors import KafkaEdgeError
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
