"""Target topics to which a delay topic may deliver; all others are denied.

A delay record is written to its target with the service's rights, so an open target header would
let any producer write anywhere (the confused deputy).

Rules that never change are checked when a record is read: a target has a legal name, which is not
reserved for Kafka or the service, and is not the delay topic itself. All other rules are checked at
settling, by the settings of the node that settles the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

from delayservice.contract.codes import TARGET_DENIED, TARGET_INVALID, RecordRefusedError
from delayservice.contract.names import TOPIC_NAME, is_reserved

_CACHE_ENTRIES_MAX = 1024


class Allowlist:
    """Allowed target topics of one delay topic, which is never a target itself. ``allow`` and
    ``reserved`` are shell-style patterns of whole names, case-sensitive; ``reserved`` wins,
    ``default`` needs no pattern. ``good`` caches up to 1,024 allowed topics.
    """

    def __init__(
        self,
        delay_topic: str,
        allow: Iterable[str] = (),
        reserved: Iterable[str] = (),
        default: str | None = None,
    ) -> None:
        self.good: set[str] = set()
        self._default = default
        self._allow = _compiled(allow)
        self._reserved = _compiled([*reserved, delay_topic])

    def denial(self, topic: str) -> str | None:
        """Return why a topic is denied as a target, as text; None: it is allowed."""
        if topic in self.good:
            return None
        if is_reserved(topic) or any(rule.match(topic) for rule in self._reserved):
            return f"{topic} is reserved and never a target"
        if topic != self._default and not any(rule.match(topic) for rule in self._allow):
            return f"{topic} is not among the targets that this delay topic allows"
        if len(self.good) >= _CACHE_ENTRIES_MAX:
            self.good.clear()
        self.good.add(topic)
        return None


class TargetReader:
    """Reader of the target header of one delay topic, which is never a target."""

    def __init__(self, delay_topic: str) -> None:
        # Cache of up to 1,024 allowed topics, by the header's value.
        self.allowed: dict[bytes | None, str] = {}
        self._allowlist = Allowlist(delay_topic, ["*"])

    def check(self, name: str, value: bytes | None) -> str:
        """Return the target topic; raise ``RecordRefusedError`` if it is illegal or reserved."""
        topic = _legal_topic(name, value)
        denial = self._allowlist.denial(topic)
        if denial is not None:
            raise RecordRefusedError(TARGET_DENIED, denial)
        if len(self.allowed) >= _CACHE_ENTRIES_MAX:
            self.allowed.clear()
        self.allowed[value] = topic
        return topic


def _compiled(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(translate(pattern)) for pattern in patterns)


def _legal_topic(name: str, value: bytes | None) -> str:
    if value is None or not TOPIC_NAME.fullmatch(value) or value in (b".", b".."):
        shown = "no value" if value is None else repr(value[:64])[1:]
        raise RecordRefusedError(TARGET_INVALID, f"{name} is {shown}: no legal topic name")
    return value.decode("ascii")
