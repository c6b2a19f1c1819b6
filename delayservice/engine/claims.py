"""Claims: how a slice changes its owner in the log. Pure; no I/O.

A *writer* is one transactional id: one incarnation of one worker, never used again. Before a writer
serves a slice it commits a claim; when it lets go in good order it commits a release. Both lie in
the claims topic, which has one partition, so that the claims of a slice have one order::

    key    b"<slice>:<writer>"
    value  {"v": 1, "slice": 3, "writer": "…", "node": "n1", "word": "claim" | "release", "turn": 5}

``turn`` counts the claims of a writer, so that it knows its newest from one that it has released. A
null value (a tombstone) says that the writer was fenced and may be forgotten.

Who claims must fence every writer that may still commit for the slice: those whose last word before
the own claim is a claim at or above *the claim under which the newest checkpoint was written*, and
the writer of that checkpoint. Source: "Ownership" in ``docs/internals/design.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from delayservice.base.errors import KafkaEdgeError

VERSION: Final = 1
WRITER: Final = "writer"
"""Header of checkpoints and claims: the writer whose transaction they are part of. The key of a
tombstone names the writer that is forgotten, which is another."""
CLAIM: Final = "claim"
RELEASE: Final = "release"


class Word(NamedTuple):
    """The last that a writer said of a slice: ``offset`` in the claims topic, claim or release."""

    offset: int
    is_release: bool


class Claimed(NamedTuple):
    """An own claim as it was read back.

    Attributes:
        offset: of the claim in the claims topic; checkpoints written under it name it.
        before: the last word of every other writer that lies below the claim.
    """

    offset: int
    before: Mapping[str, Word]


class Tenure(NamedTuple):
    """The author of a checkpoint: the writer, and the offset of the claim under which it served."""

    writer: str
    claim: int


def encode_key(slice_no: int, writer: str) -> bytes:
    """Return the key of a writer's words about a slice."""
    return b"%d:%s" % (slice_no, writer.encode())


def encode_word(
    slice_no: int, writer: str, node_id: str, word: str, turn: int | None = None
) -> bytes:
    """Return a claim or release. ``turn``: higher than in any earlier claim of the writer."""
    said = {"v": VERSION, "slice": slice_no, "writer": writer, "node": node_id, "word": word}
    return msgspec.json.encode(said if turn is None else said | {"turn": turn})


def decode_key(key: bytes | None) -> tuple[int, str]:
    """Return slice and writer.

    Raises:
        KafkaEdgeError: the record is foreign.
    """
    slice_no, _, writer = (key or b"").partition(b":")
    if not slice_no.isdigit() or not writer:
        raise KafkaEdgeError(
            f"a record of the claims topic has the key {key!r}, which is not one of the service's; "
            "find what writes to that topic, and restrict the topic to the delay service"
        )
    return int(slice_no), writer.decode(errors="replace")


def names_to_fence(claimed: Claimed, tenure: Tenure | None, me: str) -> frozenset[str]:
    """Return the writers that may still commit for a slice, other than ``me``.

    Args:
        claimed: the own claim as read back, with the words that lie below it.
        tenure: of the newest committed checkpoint; None when there is none, or when it was written
            by a version without claims.
        me: the own writer.
    """
    start = 0 if tenure is None else tenure.claim
    names = {writer for writer, word in claimed.before.items() if word.offset >= start}
    if tenure is not None:
        names.add(tenure.writer)
    released = {writer for writer, word in claimed.before.items() if word.is_release}
    return frozenset(names - released - {me})


class ClaimLog:
    """The committed words of the claims topic, by slice, as they are read in order."""

    def __init__(self) -> None:
        self._words: dict[int, dict[str, Word]] = {}
        self._claimed: dict[int, tuple[int, Claimed]] = {}
        """Own newest claims, with their turns."""
        self._me = ""

    def enter(self, writer: str) -> None:
        """Take ``writer`` for the own one: claims of an earlier one no longer count as own."""
        self._me = writer
        self._claimed.clear()

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take one committed record, in the order of the log. What can't be read counts as a claim
        of the writer that its key names, so that it is fenced rather than overlooked.

        Raises:
            KafkaEdgeError: the record is foreign or of a newer version.
        """
        slice_no, writer = decode_key(key)
        words = self._words.setdefault(slice_no, {})
        if value is None:
            words.pop(writer, None)
            return
        try:
            is_release, turn = _read_word(value)
        except KafkaEdgeError:
            words[writer] = Word(offset, is_release=False)
            raise
        if writer == self._me and not is_release:
            before = {name: said for name, said in words.items() if name != writer}
            claimed = Claimed(offset, before)
            self._claimed[slice_no] = (offset if turn is None else turn, claimed)
        words[writer] = Word(offset, is_release)

    def claimed(self, slice_no: int, above: int = -1) -> Claimed | None:
        """Return the own newest claim of a slice if its turn is above a number. A claim without a
        turn has its offset for one.
        """
        turn, found = self._claimed.get(slice_no, (-1, None))
        return found if turn > above else None


def _read_word(value: bytes) -> tuple[bool, int | None]:
    """Return whether it is a release, and its turn."""
    try:
        raw = msgspec.json.decode(value)
        version, word, turn = raw["v"], raw["word"], raw.get("turn")
    except (msgspec.DecodeError, KeyError, TypeError) as exc:
        raise KafkaEdgeError(
            f"a record of the claims topic can't be read ({exc!r}); find what writes to that "
            "topic, and restrict the topic to the delay service"
        ) from exc
    if version != VERSION or word not in {CLAIM, RELEASE}:
        raise KafkaEdgeError(
            f"the claims topic holds version {version}, this build reads version {VERSION}; run "
            "the newer build on every node"
        )
    return word == RELEASE, turn
