"""Checks with cached metadata whether targets can be written to, so that a bad one is found when
a record is settled, and not by a failing transaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from connectors.kafka.log_ends import ASK_TIMEOUT_S
from connectors.kafka.target_limits import TargetLimits
from connectors.kafka.topic_facts import WRITE, Access, ask_access, ask_configs
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.codes import (
    TARGET_ASKED,
    TARGET_DOWN,
    TARGET_LATER,
    TARGET_PAUSED,
    TARGET_UNAUTHORIZED,
    TARGET_UNKNOWN,
)
from delayservice.contract.entry import Headers
from delayservice.engine.outcome import Output, Target


def is_good(access: Access) -> bool:
    return access.partitions > 0 and not access.lacks(WRITE)


def in_sync_missing(access: Access, config: Mapping[str, str]) -> int:
    # 0: all have enough, or a partition has no leader, for whose election the client waits.
    in_sync = min(access.in_sync, default=access.copies)
    if in_sync == 0 or in_sync >= access.copies:
        return 0
    needed = int(config.get("min.insync.replicas", "1"))
    return needed if in_sync < needed else 0


def obstacle_of(
    access: Access | None, topic: str, partition: int, in_sync_needed: int
) -> tuple[str, str] | None:
    """Return why a target can't be written to, as code and detail; None: it can. ``partition`` -1:
    any, so all of them must be good. ``in_sync_needed``: 0 unless a partition is known to have
    fewer in-sync replicas.
    """
    if access is None:
        return TARGET_UNKNOWN, f"topic {topic} is not known yet"
    if access.lacks(WRITE):
        return TARGET_UNAUTHORIZED, f"the service may not write to {topic}: give it Write"
    if access.partitions == 0:
        return TARGET_UNKNOWN, f"topic {topic} does not exist"
    if access.partitions <= partition:
        count = access.partitions
        return TARGET_UNKNOWN, f"topic {topic} has {count} partitions, none is {partition}"
    down = [n for n, in_sync in enumerate(access.in_sync) if in_sync < in_sync_needed]
    if down and (partition < 0 or partition in down):
        what = "a leader" if in_sync_needed == 1 else f"{in_sync_needed} copies in sync"
        return TARGET_DOWN, f"partitions {down} of topic {topic} are without {what}"
    return None


def unreached(
    access: Access | None, topic: str, partition: int, silent: Collection[int]
) -> tuple[str, str] | None:
    """Return, as code and detail, which partitions of a target are led by brokers in ``silent``,
    which do not answer this node; None: there are no such partitions.
    """
    if access is None or not silent:
        return None
    found = [n for n, leader in enumerate(access.leaders) if leader in silent]
    if found and (partition < 0 or partition in found):
        return TARGET_DOWN, f"the leaders of partitions {found} of topic {topic} do not answer"
    return None


# Largest number of target topics whose metadata are kept, and of topics that wait for a look-up.
# Beyond it a tenth is dropped: first those that can't be written to, then the oldest metadata.
KNOWN_MAX: Final = 10_000
_TOLD_PER_S: Final = 1.0
# Log lines about bad targets allowed at once; each second allows ``_TOLD_PER_S`` more.
_TOLD_AT_ONCE: Final = 20


class TargetLog:
    """Logger of target problems, which logs each problem once until it is over."""

    def __init__(self, now_s: float) -> None:
        self._blocked: set[Target] = set()
        # Topics whose settings can't be read.
        self._unread: set[str] = set()
        self._unlogged = 0
        self._allowed = float(_TOLD_AT_ONCE)
        self._allowed_s = now_s

    def fits(self, target: Target) -> None:
        self._blocked.discard(target)

    def blocked(self, target: Target, why: str, now_s: float) -> None:
        # A flood of bad targets must not fill the log: lines beyond the limit are only counted.
        if target in self._blocked:
            return
        if len(self._blocked) >= KNOWN_MAX:
            self._blocked.clear()
        self._blocked.add(target)
        gained = (now_s - self._allowed_s) * _TOLD_PER_S
        self._allowed, self._allowed_s = min(self._allowed + gained, _TOLD_AT_ONCE), now_s
        if self._allowed < 1:
            self._unlogged += 1
            return
        self._allowed -= 1
        more, self._unlogged = self._unlogged, 0
        name = f"{target[0]}:{target[1]}"
        _log.warning("target_blocked", target=name, why=why, others_before=more)

    def read(self, topic: str) -> None:
        self._unread.discard(topic)

    def not_read(self, topic: str, why: str) -> None:
        if topic not in self._unread:
            if len(self._unread) >= KNOWN_MAX:
                self._unread.clear()
            self._unread.add(topic)
            _log.warning("topic_config_not_read", topic=topic, why=why)


# Largest age of metadata by which a target counts as bad, in s. Older ones are read again, as the
# topic may have been created since.
_RECHECK_S: Final = 0.25
# Time for which a shard waits for new metadata of a topic, in s; then the old ones decide.
_ANSWER_S: Final = 0.5
# Number of topics per second for whose metadata shards wait. Records for other topics are put off,
# so that a flood of new targets delays nothing else.
_AWAITED_PER_S: Final = 20
# Time for which ``problems`` reports a failed write to a topic of the service, in s.
_WAITED_S: Final = 5.0
# Largest age of the settings of a topic that does not take every batch, in s.
_TERMS_S: Final = 5.0
_GIVEN_UP_S: Final = 1.0
# Longest pause for a partition that did not acknowledge in time, in s. It begins at ``_GIVEN_UP_S``
# and doubles, as each time-out delays all other records by two seconds.
_GIVEN_UP_MAX_S: Final = 60.0
# Refusals by a topic within a minute after which it is given up: it takes two to find the record
# that is to blame, and one until new metadata are used.
_CONTRADICTIONS_MAX: Final = 2
# Time-out of ``unserved``, in s: short, as a transaction is open and the question is repeated.
_UNSERVED_TIMEOUT_S: Final = 1.0
_KEPT: Final = 0.9
# Largest number of topics in one request.
_ASKED_MAX: Final = 500

_NEVER_S: Final = float("-inf")

_log = structlog.get_logger(__name__)


class _Down(NamedTuple):
    """End (monotonic seconds) and duration (s) of the time for which a target is given up, and the
    reason, which goes on after the topic's name.
    """

    until_s: float
    lasts_s: float
    why: str


class TargetTopics:
    """Target topics as a worker knows them. The worker's loop calls ``obstacle`` and ``expect``,
    which never wait; ``serve`` asks the cluster, on a thread of its own. Any thread may call the
    other methods.

    A target is *given up* for a while when it did not acknowledge records in time.
    """

    def __init__(
        self,
        admin: AdminClient,
        monotonic_s: Callable[[], float] = time.monotonic,
        why_paused: Callable[[str], str | None] = lambda _: None,
        *,
        compresses: bool = False,
        # Topics of the service that it writes to. They count as good until the cluster answers, as
        # they were good when the service started.
        own: Collection[str] = (),
        # Returns the ids of brokers that do not answer this node. Partitions that they lead can't
        # be written to.
        silent: Callable[[], Collection[int]] = tuple,
        is_delay_topic: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._silent = silent
        self._is_delay_topic = is_delay_topic
        self._own = frozenset(own)
        # Targets that were found good and need no call of ``obstacle``, until ``changed``.
        self.writable: set[Target] = set()
        # Topics that were found to be deleted and created again, until the sink clears it: a
        # producer that wrote to them may go on with their former leaders.
        self.remade: set[str] = set()
        # Id of each topic when it was last seen.
        self._ids: dict[str, str] = {}
        self._why_paused = why_paused
        self._admin = admin
        self._monotonic_s = monotonic_s
        self._known: dict[str, Access] = {}
        self._asked_s: dict[str, float] = {}
        self._sought: dict[str, float] = {}
        # Time since which a record has needed newer metadata of a topic, monotonic seconds, by
        # topic.
        self._wanted_s: dict[str, float] = {}
        # Number of copies in sync that a topic needs, by topic that lacks them.
        self._in_sync_needed: dict[str, int] = {}
        # Limits of topics, and what the open transaction has of those that take little.
        self.limits = TargetLimits(compresses=compresses)
        self.small = self.limits.small
        # Time at which a shard began to wait for metadata, monotonic seconds, by topic.
        self._awaited_s: dict[str, float] = {}
        self._down: dict[Target, _Down] = {}
        # How often brokers have contradicted what was known of a topic, and when last, monotonic
        # seconds.
        self._contradicted: dict[str, tuple[int, float]] = {}
        # Reason and time, monotonic seconds, of failed writes to topics of the service and to
        # partitions of delay topics.
        self._waited_for: dict[str, tuple[str, float]] = {}
        self._log = TargetLog(monotonic_s())
        self._lock = threading.Lock()
        self._changes = 0
        self._wake = threading.Event()

    def obstacle(self, target: Target) -> tuple[str, str] | None:
        topic = target[0]
        paused = self._why_paused(topic)
        if paused is not None:
            return TARGET_PAUSED, paused
        changes = self._changes
        found = self._judge(target)
        now_s = self._monotonic_s()
        if found is None:
            self._log.fits(target)
            if not self.limits.are_usual(topic):
                if now_s - self._asked_s.get(topic, _NEVER_S) >= _TERMS_S:
                    self._seek(topic, now_s)
                return None
            with self._lock:
                if changes == self._changes:
                    self.writable.add(target)
            return None
        if self._given_up(target) is None and not self._is_answered(topic, now_s):
            return self._awaited(topic, now_s), f"topic {topic} is being looked up"
        if topic in self._own and topic not in self._known:
            return None
        self._log.blocked(target, found[1], now_s)
        if topic in self._own:
            self._waited_for[topic] = found[1], now_s
        elif self._is_delay_topic(topic):
            self._waited_for[f"{topic}:{target[1]}"] = found[1], now_s
        return found

    def problems(self) -> list[str]:
        """Return one sentence for each topic of the service, or partition of a delay topic, that
        could not be written to in the last ``_WAITED_S``, with the reason. Such writes are tried
        again all the time.
        """
        since_s = self._monotonic_s() - _WAITED_S
        return [
            f"{place} can't be written to, and shards that need it wait: {why}"
            for place, (why, at_s) in list(self._waited_for.items())
            if at_s > since_s
        ]

    def _is_answered(self, topic: str, now_s: float) -> bool:
        """Return whether the metadata by which a target is bad may be used: they are new enough, or
        a shard has waited ``_ANSWER_S`` for newer ones. If not, request newer ones.
        """
        asked_s = self._asked_s.get(topic, _NEVER_S)
        is_new = now_s - asked_s < _RECHECK_S or asked_s > self._wanted_s.get(topic, now_s)
        if is_new or now_s - self._seek(topic, now_s) >= _ANSWER_S:
            self._wanted_s.pop(topic, None)
            return True
        if len(self._wanted_s) >= KNOWN_MAX:
            self._wanted_s.clear()
        self._wanted_s.setdefault(topic, now_s)
        return False

    def _awaited(self, topic: str, now_s: float) -> str:
        """Return ``TARGET_ASKED`` if a shard may wait for a topic's metadata; else, as shards wait
        for too many topics already, ``TARGET_LATER``.
        """
        awaited = self._awaited_s
        if topic not in awaited and len(awaited) >= _AWAITED_PER_S:
            awaited = {one: since_s for one, since_s in awaited.items() if now_s - since_s < 1}
            self._awaited_s = awaited
            if len(awaited) >= _AWAITED_PER_S:
                return TARGET_LATER
        awaited.setdefault(topic, now_s)
        return TARGET_ASKED

    def refusal(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[str, str] | None:
        found = self.limits.refusal(topic, key, value, headers)
        # A letter that is refused with its content is tried without.
        if found is not None and found[0] != TARGET_LATER and value is None and topic in self._own:
            self._waited_for[topic] = found[1], self._monotonic_s()
        return found

    def reserve(self, outputs: Iterable[Output]) -> None:
        self.limits.reserve(outputs)

    def expect(self, targets: Collection[Target]) -> None:
        for topic in {topic for topic, _ in targets} - self._known.keys():
            self._seek(topic, self._monotonic_s())

    def _seek(self, topic: str, now_s: float) -> float:
        """Request a look-up of a topic; return the time since which it is requested, monotonic
        seconds, or minus infinity while too many topics are requested already.
        """
        with self._lock:
            since_s = self._sought.get(topic, _NEVER_S)
            if topic not in self._sought and len(self._sought) < KNOWN_MAX:
                since_s = self._sought[topic] = now_s
        self._wake.set()
        return since_s

    def _judge(self, target: Target) -> tuple[str, str] | None:
        topic, partition = target
        down = self._given_up(target)
        if down is not None:
            return TARGET_DOWN, f"topic {topic} {down.why}"
        needed = self._in_sync_needed.get(topic, 0)
        access = self._known.get(topic)
        return obstacle_of(access, topic, partition, needed) or unreached(
            access, topic, partition, self._silent()
        )

    def _given_up(self, target: Target) -> _Down | None:
        # Partition -1: any partition of the topic.
        if not self._down:
            return None
        now_s, (topic, partition) = self._monotonic_s(), target
        return next(
            (
                down
                for one, down in self._down.items()
                if one[0] == topic
                and (partition < 0 or one[1] in {partition, -1})
                and down.until_s > now_s
            ),
            None,
        )

    def changed(self) -> None:
        """Clear ``writable``: targets are judged anew, as pauses or metadata have changed."""
        with self._lock:
            self._changes += 1
            self.writable.clear()

    def forget(self, topic: str) -> None:
        # A broker contradicts the metadata, so they are read again.
        with self._lock:
            self._known.pop(topic, None)
            self._asked_s.pop(topic, None)
            self.limits.forget([topic])
        self.changed()

    def contradicted(self, topic: str) -> None:
        """Forget a topic's metadata, since a broker has refused records that fit them. If that goes
        on, give the topic up: each refusal ends a transaction, with the records of all others.
        """
        now_s = self._monotonic_s()
        times, last_s = self._contradicted.get(topic, (0, _NEVER_S))
        times = 1 if now_s - last_s > _GIVEN_UP_MAX_S else times + 1
        if topic not in self._contradicted and len(self._contradicted) >= KNOWN_MAX:
            self._contradicted.clear()
        self._contradicted[topic] = times, now_s
        self.forget(topic)
        if times > _CONTRADICTIONS_MAX:
            self.give_up({(topic, -1)}, "refuses records")

    def give_up(self, targets: Collection[Target], why: str, least_s: float = _GIVEN_UP_S) -> None:
        """Count targets as bad for ``least_s`` seconds. If that happens again within a minute after
        the pause, the next one is twice as long, up to 60 s. ``why``: what is wrong; it goes on
        after the topic's name.
        """
        if not targets:
            return
        now_s = self._monotonic_s()
        with self._lock:
            recent = {t: d for t, d in self._down.items() if d.until_s + _GIVEN_UP_MAX_S > now_s}
            for target in targets:
                before = recent.get(target)
                lasts_s = min(2 * before.lasts_s, _GIVEN_UP_MAX_S) if before else least_s
                recent[target] = _Down(now_s + lasts_s, lasts_s, why)
            self._down = recent
        self.changed()
        names = sorted(f"{t}:{p}" for t, p in targets)[:10]
        _log.warning("targets_given_up", targets=names, why=why)

    def unserved(self, targets: Collection[Target]) -> dict[Target, tuple[str, str]]:
        """Return why targets can't acknowledge records, as code and detail, by target; good ones
        are left out. The cluster is asked at most four times a second about each topic. A topic
        without a leader counts as bad from now on, until it has one.
        """
        topics = {topic for topic, _ in targets}
        now_s = self._monotonic_s()
        self._ask(
            [t for t in topics if now_s - self._asked_s.get(t, _NEVER_S) >= _RECHECK_S],
            _UNSERVED_TIMEOUT_S,
        )
        self._note_leaderless(topics)
        found = {target: self._judge(target) for target in targets}
        return {target: obstacle for target, obstacle in found.items() if obstacle is not None}

    def _note_leaderless(self, topics: Collection[str]) -> None:
        with self._lock:
            without = {t for t in topics if t in self._known and 0 in self._known[t].in_sync}
            is_news = not without <= self._in_sync_needed.keys()
            self._in_sync_needed |= dict.fromkeys(without - self._in_sync_needed.keys(), 1)
        if is_news:
            self.changed()

    def serve(self) -> None:
        """Wait up to a second until a look-up is requested, and do it."""
        self._wake.wait(1.0)
        self._wake.clear()
        self.look_up()

    def look_up(self) -> None:
        with self._lock:
            sought = list(self._sought)[:_ASKED_MAX]
        if not sought:
            return
        try:
            found = self._ask(sought, ASK_TIMEOUT_S)
        except KafkaEdgeError as exc:
            _log.debug("targets_not_seen", why=str(exc))
            found = frozenset()
        with self._lock:
            if len(self._sought) > len(sought):
                self._wake.set()
            for topic in sought:  # those without an answer queue behind the others
                since_s = self._sought.pop(topic, None)
                if topic not in found and since_s is not None:
                    self._sought[topic] = since_s

    def _ask(self, topics: Collection[str], timeout_s: float) -> Collection[str]:
        # In-sync replicas are checked before a topic counts as known: a transaction with records
        # for a topic that has too few could not end.
        if not topics:
            return ()
        found = ask_access(self._admin, topics, timeout_s, may_lack=True)
        wanted = [topic for topic, access in found.items() if self._wants_config(topic, access)]
        configs = self._settings(wanted, timeout_s)
        missing = {
            topic: needed
            for topic, config in configs.items()
            if (needed := in_sync_missing(found[topic], config))
        }
        now_s = self._monotonic_s()
        with self._lock:
            changed = bool(missing) or any(
                self._known.get(topic, access) != access for topic, access in found.items()
            )
            for topic, config in configs.items():
                changed = self.limits.learn(topic, config) or changed
            self._note_ids(found)
            self._known |= found
            self._asked_s |= dict.fromkeys(found, now_s)
            for topic, needed in list(self._in_sync_needed.items()):
                if topic in found and min(found[topic].in_sync, default=0) >= needed:
                    del self._in_sync_needed[topic]
            self._in_sync_needed |= missing
            changed = self._forget_some() or changed
        if changed:
            self.changed()
        return found.keys()

    def _settings(self, topics: Collection[str], timeout_s: float) -> dict[str, dict[str, str]]:
        """Return the configuration of each topic; those that can't be read are left out."""
        settings = {}
        for topic, found in ask_configs(self._admin, topics, timeout_s):
            if isinstance(found, KafkaException):
                self._log.not_read(topic, str(found))
            else:
                self._log.read(topic)
                settings[topic] = found
        return settings

    def _note_ids(self, found: Mapping[str, Access]) -> None:
        ids = {topic: access.topic_id for topic, access in found.items() if access.topic_id}
        self.remade |= {topic for topic, one in ids.items() if self._ids.get(topic, one) != one}
        self._ids |= ids

    def _wants_config(self, topic: str, access: Access) -> bool:
        """Return whether a topic's settings have to be read: they are unknown, restrict records, or
        are needed as replicas are out of sync.
        """
        if not access.partitions or access.lacks(WRITE):
            return False
        is_usual = topic in self.limits and self.limits.are_usual(topic)
        return not is_usual or min(access.in_sync, default=0) < access.copies

    def _forget_some(self) -> bool:
        """If more than ``KNOWN_MAX`` topics are known, forget some of them; return whether one of
        these could be written to.
        """
        if len(self._known) <= KNOWN_MAX:
            return False
        order = sorted(
            self._known, key=lambda t: (is_good(self._known[t]), self._asked_s.get(t, _NEVER_S))
        )
        extra = order[: len(order) - int(KNOWN_MAX * _KEPT)]
        is_any_good = is_good(self._known[extra[-1]])
        self.limits.forget(extra)
        for topic in extra:
            del self._known[topic]
            self._ids.pop(topic, None)
            self._asked_s.pop(topic, None)
            self._in_sync_needed.pop(topic, None)
        return is_any_good
