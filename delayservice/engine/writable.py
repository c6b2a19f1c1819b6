"""The facts that settling needs about the topics that it writes to."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from delayservice.contract.entry import Headers
from delayservice.engine.outcome import Target


class WritableTargets(Protocol):
    """The known facts about target topics; answers at once."""

    @property
    def fit(self) -> Container[Target]:
        """Targets that can be written to as far as is known."""

    def obstacle(self, target: Target) -> tuple[str, str] | None:
        """Return why a target can't be written to now, as code and detail; None: it can. With the
        code ``TARGET_ASKED`` the shard waits: the cluster is being asked. With ``TARGET_LATER`` the
        record is put off.
        """

    def refusal(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[str, str] | None:
        """Return why a topic that can be written to does not take this record, as code and detail;
        None: it does, and the record is taken for a part of the open transaction. The code
        ``TARGET_LATER`` says that a later transaction may have it.
        """


class _All:
    """Contains everything."""

    def __contains__(self, _: object) -> bool:
        return True


class AnyTarget:
    """Targets that can all be written to."""

    fit: Container[Target] = _All()

    def obstacle(self, target: Target) -> tuple[str, str] | None:  # noqa: ARG002  # fit has all
        """Return None."""
        return None

    def refusal(self, *_: object) -> tuple[str, str] | None:
        """Return None."""
        return None
