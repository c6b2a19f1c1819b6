"""Builds outputs that settle a record without delivery: dead letters, and records of the outcomes
topic. Methods return None while their topic can't be written to: then the record has to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from delayservice.contract.codec import Payload
from delayservice.contract.codes import TARGET_LATER
from delayservice.contract.entry import Original
from delayservice.contract.names import (
    DELAY_OUTCOME,
    DELAY_SETTLED_BY,
    DELAY_SETTLED_BY_SOURCE,
    DELAY_SETTLES,
    DELAY_SHARD,
    Header,
)
from delayservice.contract.provenance import (
    Provenance,
    dead_letter_headers,
    is_large,
    to_input_headers,
    without_content,
)
from delayservice.contract.requeue import CONTINUES
from delayservice.engine import outcome
from delayservice.engine.outcome import Output, Routes
from delayservice.engine.ports import WritableTargets


@dataclass(slots=True)
class Verdicts:
    """Refusals of single records by the broker, such as too large ones, until a commit settles
    them.

    ``refused``: by source offset, ``(code, detail)``; the record is dead-lettered. ``stripped``:
    offsets whose dead letter was refused too; it is written without content.
    """

    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    stripped: set[int] = field(default_factory=set)
    # Settled in the open transaction.
    staged: set[int] = field(default_factory=set)

    def refusal(self, offset: int) -> tuple[str, str] | None:
        """Return code and detail of a refused record, which the open transaction settles; else
        None.
        """
        found = self.refused.get(offset) if self.refused else None
        if found is not None:
            self.staged.add(offset)
        return found

    def refuse(self, refusals: Sequence[tuple[int, tuple[str, str]]]) -> None:
        """Add refusals. An offset refused twice gets a dead letter without content."""
        for offset, reason in refusals:
            if offset in self.refused:
                self.stripped.add(offset)
            self.refused.setdefault(offset, reason)

    def committed(self) -> None:
        for offset in self.staged:
            self.refused.pop(offset, None)
            self.stripped.discard(offset)
        self.staged.clear()

    def step_down(self) -> None:
        """Keep all refusals: the open transaction has not settled them, and the next commit may
        carry a first checkpoint only.
        """
        self.staged.clear()


BY_KEY: Final = -1


class UndeliveredOutputs:
    def __init__(
        self,
        provenance: Provenance,
        shard_name: str,
        routes: Routes,
        verdicts: Verdicts,
        targets: WritableTargets,
    ) -> None:
        self._provenance = provenance
        self._shard_name = shard_name
        self._routes = routes
        self._verdicts = verdicts
        self._targets = targets

    def takes(self, topic: str) -> bool:
        own = (topic, BY_KEY)
        return own in self._targets.writable or self._targets.obstacle(own) is None

    def dead_letter(
        self,
        offset: int,
        original: Original,
        code: str,
        detail: str,
        due_ms: int = 0,
        source: bytes | None = None,
    ) -> Output | None:
        """Return a dead letter; None: not now. It lacks key, value and headers if the topic
        refuses it with these. ``due_ms`` 0: none. ``source``: ``delay-source`` unless a user
        wrote it at ``offset``.
        """
        topic = self._routes.dead_letter
        if not self.takes(topic):
            return None
        reason = (code, detail)
        if offset not in self._verdicts.stripped:
            letter = self._letter(offset, original, reason, due_ms, source)
            found = self._refusal(letter)
            if found is None:
                return letter
            if found[0] == TARGET_LATER:
                return None
        letter = self._letter(offset, original, reason, due_ms, source, is_stripped=True)
        return letter if self._refusal(letter) is None else None

    def letter_beside(
        self,
        offset: int,
        original: Original,
        reason: tuple[str, str],
        source: bytes,
        due_ms: int = 0,
    ) -> Output:
        """Return a dead letter that settles no record, beside the output that settles
        ``offset``.
        """
        is_stripped = offset in self._verdicts.stripped
        kind, topic, partition, key, value, headers, due_ms, _ = self._letter(
            offset, original, reason, due_ms, source, is_stripped=is_stripped
        )
        told: list[Header] = [
            (name, b"%d" % CONTINUES if name == DELAY_SETTLES else text) for name, text in headers
        ]
        return (kind, topic, partition, key, value, told, due_ms, offset)

    def cancelled(
        self,
        kind: int,
        victim_offset: int,
        record_id: bytes,
        by: int,
        by_source: bytes | None = None,
    ) -> Output | None:
        """Return the outcomes-topic record of a victim cancelled or replaced (``kind``) by the
        record at ``by``, with its ``delay-source`` if it came in an envelope.
        """
        told = self.outcome(kind, victim_offset, record_id, None, 0, by)
        if told is not None and by_source is not None:
            told[5].append((DELAY_SETTLED_BY_SOURCE, by_source))
        return told

    def control(
        self, kind: int, offset: int, record_id: bytes, source: bytes | None = None
    ) -> Output | None:
        """Return the outcomes-topic record of a cancel or fire itself."""
        source = source or self._provenance.source(offset, None)
        return self.outcome(kind, offset, record_id, source, 0, None)

    def dead_letter_of(
        self, offset: int, payload: Payload, code: str, detail: str
    ) -> Output | None:
        """Return the dead letter of a pending record, with the input headers to write it again."""
        source = self._provenance.source(offset, payload[6])
        return self.dead_letter(offset, to_input_headers(payload), code, detail, payload[5], source)

    def outcome(
        self,
        kind: int,
        offset: int,
        record_id: bytes | None,
        source: bytes | None,
        due_ms: int,
        by: int | None,
    ) -> Output | None:
        """Return the outcomes-topic record of ``kind``. ``due_ms`` is in epoch ms, ``by`` is the
        offset that settled it; None and 0 add no header.
        """
        topic = self._routes.outcomes
        if not self.takes(topic):
            return None
        headers: list[Header] = [
            (DELAY_OUTCOME, outcome.OUTCOME_NAMES[kind].encode()),
            (DELAY_SHARD, self._shard_name.encode()),
            (DELAY_SETTLES, b"%d" % offset),
        ]
        if record_id is not None:
            headers.append(("delay-id", record_id))
        if source is not None:
            headers.append(("delay-source", source))
        if due_ms:
            headers.append(("delay-due-at", b"%d" % due_ms))
        if by is not None:
            headers.append((DELAY_SETTLED_BY, b"%d" % by))
        told = (kind, topic, BY_KEY, record_id, None, headers, due_ms, offset)
        return told if self._refusal(told) is None else None

    def _letter(
        self,
        offset: int,
        original: Original,
        reason: tuple[str, str],
        due_ms: int,
        source: bytes | None,
        *,
        is_stripped: bool = False,
    ) -> Output:
        key, value, headers = original
        code, detail = reason
        self._verdicts.refusal(offset)
        if is_stripped:
            (key, value, headers), told = without_content(original)
            detail = told + detail
        source = source or self._provenance.source(offset, None)
        lettered = dead_letter_headers(headers, code, detail, source)
        lettered += self._provenance.settles(offset, source)
        topic = self._routes.dead_letter
        return (outcome.DEAD_LETTERED, topic, BY_KEY, key, value, lettered, due_ms, offset)

    def _refusal(self, output: Output) -> tuple[str, str] | None:
        _, topic, partition, key, value, headers, _, _ = output
        if (topic, partition) in self._targets.writable and not is_large(value, headers):
            return None
        return self._targets.refusal(topic, key, value, headers)
