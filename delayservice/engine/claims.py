"""Claims: how a slice changes its owner in the log. Pure; no I/O.

A *writer* is one transactional id, used by one worker during one lifetime. Before a writer serves a
slice it commits a claim; at an orderly hand-over it commits a release. Both lie in the claims
topic, which has one partition, so that the claims of a slice have one order::

    key    b"<slice>:<writer>"
    value  {"v": 1, "slice": 3, "writer": "…", "node": "n1", "word": "claim" | "release", "turn": 5}

``turn`` rises with each claim of a writer, to distinguish its newest claim from a released one. A
null value (a tombstone) means that the writer was fenced and may be forgotten.

A new owner must fence every writer that may still commit for the slice: those whose last record
below its own claim is a claim at or above *the claim under which the newest checkpoint was
written*, and the writer of that checkpoint. Source: "Ownership" in ``docs/internals/design.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from delayservice.base.errors import KafkaEdgeError

VERSION: Final = 1
# In checkpoints, claims and releases: the writer of their transaction. The key of a tombstone names
# another writer, the one to forget.
WRITER: Final = "writer"
CLAIM: Final = "claim"
RELEASE: Final = "release"
_DIGITS_MAX: Final = 10


class ClaimState(NamedTuple):
    """Newest claim or release of a writer, at ``offset`` of the claims topic."""

    offset: int
    is_release: bool


class Claimed(NamedTuple):
    """This process's claim at ``offset``, as read back, and each other writer's newest record
    below.
    """

    offset: int
    before: Mapping[str, ClaimState]


class Tenure(NamedTuple):
    """Author of a checkpoint: the writer, and the offset of its claim."""

    writer: str
    claim: int


def encode_key(slice_no: int, writer: str) -> bytes:
    return b"%d:%s" % (slice_no, writer.encode())


def encode_word(slice_no: int, writer: str, node_id: str, word: str, turn: int) -> bytes:
    """Return the value of a claim or release. ``turn`` numbers the claims of a writer,
    ascending.
    """
    said = {"v": VERSION, "slice": slice_no, "writer": writer, "node": node_id, "word": word}
    return msgspec.json.encode(said | {"turn": turn})


def slice_no_of(key: bytes | None) -> int | None:
    """Return the slice number in the key of a checkpoint; None: it is no such key."""
    if key is None or not key.isdigit() or len(key) > _DIGITS_MAX:
        return None
    return int(key)


def decode_key(key: bytes | None) -> tuple[int, str]:
    """Return slice number and writer; raise ``KafkaEdgeError`` for a foreign key."""
    number, _, writer = (key or b"").partition(b":")
    slice_no = slice_no_of(number)
    if slice_no is None or not writer:
        raise KafkaEdgeError(
            f"a record of the claims topic has the key {key!r}, which is not one of the service's; "
            "find what writes to that topic, and restrict the topic to the delay service"
        )
    return slice_no, writer.decode(errors="replace")


def names_to_fence(claimed: Claimed, tenure: Tenure | None, me: str) -> frozenset[str]:
    """Return the writers but ``me`` that may still commit for a slice. ``tenure`` is that of the
    newest checkpoint; None: there is none.
    """
    # A claim is the newest of its log, unless that was deleted and created again since the tenure.
    start = 0 if tenure is None or tenure.claim > claimed.offset else tenure.claim
    names = {writer for writer, word in claimed.before.items() if word.offset >= start}
    if tenure is not None:
        names.add(tenure.writer)
    released = {writer for writer, word in claimed.before.items() if word.is_release}
    return frozenset(names - released - {me})


class ClaimLog:
    """Newest claim or release of each writer and slice, in the part of the claims topic read so
    far.
    """

    def __init__(self) -> None:
        self._words: dict[int, dict[str, ClaimState]] = {}
        # Newest claim of this process's writer by slice, with its number (``turn``).
        self._claimed: dict[int, tuple[int, Claimed]] = {}
        self._me = ""

    def enter(self, writer: str) -> None:
        """Make ``writer`` the writer of this process, whose claims ``claimed`` returns."""
        self._me = writer
        self._claimed.clear()

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Process one committed record, in log order. A value that can't be read counts as a
        claim, so that its writer is fenced. Raise ``KafkaEdgeError`` for a foreign or newer
        record.
        """
        slice_no, writer = decode_key(key)
        words = self._words.setdefault(slice_no, {})
        if value is None:
            words.pop(writer, None)
            return
        try:
            is_release, turn = _read_word(value)
        except KafkaEdgeError:
            words[writer] = ClaimState(offset, is_release=False)
            raise
        if writer == self._me and not is_release:
            before = {name: said for name, said in words.items() if name != writer}
            claimed = Claimed(offset, before)
            self._claimed[slice_no] = (turn, claimed)
        words[writer] = ClaimState(offset, is_release)

    def claimed(self, slice_no: int, above: int = -1) -> Claimed | None:
        """Return this process's newest claim of a slice if its ``turn`` is above ``above``."""
        turn, found = self._claimed.get(slice_no, (-1, None))
        return found if turn > above else None


class _Said(msgspec.Struct):
    v: int
    word: str
    turn: int


_decode_said = msgspec.json.Decoder(_Said).decode


def _read_word(value: bytes) -> tuple[bool, int]:
    try:
        said = _decode_said(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise KafkaEdgeError(
            f"a record of the claims topic can't be read ({exc!r}); find what writes to that "
            "topic, and restrict the topic to the delay service"
        ) from exc
    if said.v != VERSION or said.word not in {CLAIM, RELEASE}:
        raise KafkaEdgeError(
            f"the claims topic holds version {said.v}, this build reads version {VERSION}: "
            "upgrade this node"
        )
    return said.word == RELEASE, said.turn
