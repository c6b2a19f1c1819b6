"""Interface to the facts about target topics that settling needs."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from delayservice.contract.entry import Headers
from delayservice.engine.outcome import Target


class WritableTargets(Protocol):
    """Known facts about target topics; no method blocks."""

    @property
    def fit(self) -> Container[Target]:
        """Return the targets that can be written to, as far as is known."""

    def obstacle(self, target: Target) -> tuple[str, str] | None:
        """Return why a target can't be written to now, as code and detail; None: it can.
        ``TARGET_ASKED``: the cluster is being asked, and the shard waits. ``TARGET_LATER``: the
        record is put off.
        """

    def refusal(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[str, str] | None:
        """Return why a writable topic refuses this record, as code and detail; None: it accepts the
        record, which then counts as part of the open transaction. ``TARGET_LATER``: a later
        transaction may hold the record.
        """


class _All:
    """Container of every target."""

    def __contains__(self, _: object) -> bool:
        return True


class AnyTarget:
    """Targets that can all be written to."""

    fit: Container[Target] = _All()

    def obstacle(self, target: Target) -> tuple[str, str] | None:  # noqa: ARG002  # fit has all
        """Return None: every target can be written to."""
        return None

    def refusal(self, *_: object) -> tuple[str, str] | None:
        """Return None: every record is accepted."""
        return None
