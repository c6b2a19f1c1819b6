"""Which target topics a delay topic may deliver to: default-deny.

A delay record is written to its target with the service's rights, so an open target header would
let any producer write anywhere (the confused deputy).
"""

from __future__ import annotations

import re
from fnmatch import translate

from delayservice.core.codes import TARGET_DENIED, TARGET_INVALID, RecordRefusedError
from delayservice.core.contract import TOPIC_NAME, Contract

_CACHE_ENTRIES_MAX = 1024


class Targets:
    """The target check of one contract for one delay topic, with the answers it gave last."""

    def __init__(self, contract: Contract, delay_topic: str) -> None:
        """Compile the contract's patterns; ``delay_topic`` itself is never a target."""
        self.allowed: dict[bytes | None, str] = {}
        """Header value to topic, of those found good before. Bounded; a miss proves nothing."""
        self._default = contract.default_target
        self._is_reserved = contract.reserves
        self._delay_topic = delay_topic
        self._allow = tuple(re.compile(translate(pattern)) for pattern in contract.allow)

    def check(self, name: str, value: bytes | None) -> str:
        """The topic that the header ``name`` means by ``value``.

        Raises:
            RecordRefusedError: ``target-invalid`` for what is no topic name, ``target-denied`` for
                what is reserved or matches no pattern.
        """
        topic = _legal_topic(name, value)
        if topic == self._delay_topic or self._is_reserved(topic):
            raise RecordRefusedError(TARGET_DENIED, f"{topic} is reserved and never a target")
        if topic != self._default and not any(rule.match(topic) for rule in self._allow):
            raise RecordRefusedError(
                TARGET_DENIED, f"{topic} is not among the targets that this delay topic allows"
            )
        if len(self.allowed) >= _CACHE_ENTRIES_MAX:
            self.allowed.clear()
        self.allowed[value] = topic
        return topic


def _legal_topic(name: str, value: bytes | None) -> str:
    """Kafka's own rule for topic names (``org.apache.kafka.common.internals.Topic``)."""
    if value is None or not TOPIC_NAME.fullmatch(value) or value in (b".", b".."):
        shown = "no value" if value is None else repr(value[:64])[1:]
        raise RecordRefusedError(TARGET_INVALID, f"{name} is {shown}: no legal topic name")
    return value.decode("ascii")
