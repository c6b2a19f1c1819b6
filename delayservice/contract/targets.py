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
from delayservice.contract.topic_names import TOPIC_NAME, is_reserved

_CACHE_ENTRIES_MAX = 1024


class Allowlist:
    """Allowed target topics of one delay topic.

    Attributes:
        good: cache of up to 1,024 allowed topics. Other topics may be allowed as well.

    Args:
        delay_topic: the delay topic, which is never a target itself.
        allow: shell-style patterns of allowed targets, matching whole names, case-sensitive.
        reserved: names and patterns that are never targets, even if ``allow`` matches them.
        default: a topic that is allowed without a pattern.
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
    """Reader of the header that names the target topic, for one delay topic, which is never a
    target. It caches the topics that it has allowed.
    """

    def __init__(self, delay_topic: str) -> None:
        self.allowed: dict[bytes | None, str] = {}
        """Cache of up to 1,024 allowed topics, by the value of the header. Other values may be
        allowed as well."""
        self._allowlist = Allowlist(delay_topic, ["*"])

    def check(self, name: str, value: bytes | None) -> str:
        """Return the target topic in the value of the header ``name``.

        Raises:
            RecordRefusedError: ``target-invalid`` for an illegal topic name, ``target-denied`` for
                a reserved topic.
        """
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
    """Return the topic in a header's value; raise ``RecordRefusedError`` if Kafka does not allow
    such a topic name.
    """
    if value is None or not TOPIC_NAME.fullmatch(value) or value in (b".", b".."):
        shown = "no value" if value is None else repr(value[:64])[1:]
        raise RecordRefusedError(TARGET_INVALID, f"{name} is {shown}: no legal topic name")
    return value.decode("ascii")
