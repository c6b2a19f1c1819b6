"""Checks with cached metadata whether targets can be written to, so that a bad one is found when
a record is settled, and not by a failing transaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
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


def is_good(access: Access | None) -> bool:
    return access is not None and access.partitions > 0 and not access.lacks(WRITE)


def in_sync_missing(access: Access, config: Mapping[str, str]) -> int:
    # 0: all have enough, or a partition has no leader, for whose election the client waits.
    in_sync = min(access.in_sync, default=access.copies)
    if in_sync == 0 or in_sync >= access.copies:
        return 0
    needed = int(config.get("min.insync.replicas", "1"))
    return needed if in_sync < needed else 0


@dataclass(slots=True)
class _Known:
    """What is known of a topic."""

    # None: nothing is known now.
    access: Access | None = None
    # Times of the last question that was answered, and of its answer, monotonic seconds.
    asked_s: float = float("-inf")
    told_s: float = float("-inf")
    # Id of the topic when it was last seen.
    topic_id: str = ""
    # Number of copies in sync that the topic needs, if a partition lacks them; else 0.
    in_sync_needed: int = 0
    # Whether the topic's settings could not be read, which is logged once.
    is_unread: bool = False
    # How often brokers have contradicted what was known of it, and when last, monotonic seconds.
    contradictions: int = 0
    contradicted_s: float = float("-inf")

    def obstacle(
        self, topic: str, partition: int, silent: Collection[int]
    ) -> tuple[str, str] | None:
        """Return why a partition can't be written to, as code and detail; None: it can.
        ``partition`` -1: any, so all of them must be good. ``silent``: brokers that do not answer
        this node.
        """
        access = self.access
        if access is None:
            return TARGET_DOWN, f"no broker has told yet whether topic {topic} exists"
        if access.lacks(WRITE):
            return TARGET_UNAUTHORIZED, f"the service may not write to {topic}: give it Write"
        count, needed = access.partitions, self.in_sync_needed
        if count == 0 or count <= partition:
            what = f"has {count} partitions, none is {partition}" if count else "does not exist"
            return TARGET_UNKNOWN, f"topic {topic} {what}"
        asked = range(count) if partition < 0 else (partition,)
        if down := [n for n in asked if access.in_sync[n] < needed]:
            what = "a leader" if needed == 1 else f"{needed} copies in sync"
            return TARGET_DOWN, f"partitions {down} of topic {topic} are without {what}"
        if mute := [n for n in asked if access.leaders[n] in silent]:
            return TARGET_DOWN, f"the leaders of partitions {mute} of topic {topic} do not answer"
        return None


_UNKNOWN: Final = _Known()


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
        self._why_paused = why_paused
        self._admin = admin
        self._monotonic_s = monotonic_s
        self._known: dict[str, _Known] = {}
        # Limits of topics, and what the open transaction has of those that take little.
        self.limits = TargetLimits(compresses=compresses)
        self.small = self.limits.small
        # Time since which a look-up of a topic has been requested, monotonic seconds.
        self._sought: dict[str, float] = {}
        # Time since which a record has needed newer metadata of a topic, monotonic seconds.
        self._wanted_s: dict[str, float] = {}
        # Time at which a shard began to wait for metadata, monotonic seconds, by topic.
        self._awaited_s: dict[str, float] = {}
        self._down: dict[Target, _Down] = {}
        # Reason and time, monotonic seconds, of failed writes to topics of the service and to
        # partitions of delay topics.
        self._waited_for: dict[str, tuple[str, float]] = {}
        self._log = TargetLog(monotonic_s())
        self._lock = threading.Lock()
        self._changes = 0
        self._wake = threading.Event()

    def obstacle(self, target: Target) -> tuple[str, str] | None:
        topic, changes = target[0], self._changes
        if (held := self._hold(topic)) is not None:
            return held
        known = self._known.get(topic, _UNKNOWN)
        asked_s, told_s = known.asked_s, known.told_s  # no later than what is judged
        found, now_s = self._judge(target), self._monotonic_s()
        if found is None:
            self._log.fits(target)
            if not self.limits.are_usual(topic):
                if now_s - asked_s >= _TERMS_S:
                    self._seek(topic, now_s)
                return None
            with self._lock:
                if changes == self._changes:
                    self.writable.add(target)
            return None
        is_new = now_s - asked_s < _RECHECK_S or asked_s > self._wanted_s.get(topic, now_s)
        # A slow answer serves all that wait for it, not only the first.
        is_usable = is_new or now_s - told_s < _RECHECK_S
        if self._given_up(target) is None and not self._is_decided(topic, now_s, is_new=is_usable):
            return self._awaited(topic, now_s), f"topic {topic} is being looked up"
        if found[0] == TARGET_UNKNOWN and not is_new:  # it may have been created since
            found = TARGET_DOWN, f"{found[1]}, as brokers said before; there is no newer answer"
        if topic in self._own and self._access(topic) is None:
            return None
        self._note_blocked(target, found[1], now_s)
        return found

    def _note_blocked(self, target: Target, why: str, now_s: float) -> None:
        topic, partition = target
        self._log.blocked(target, why, now_s)
        if topic in self._own:
            self._waited_for[topic] = why, now_s
        elif self._is_delay_topic(topic):
            self._waited_for[f"{topic}:{partition}"] = why, now_s

    def _hold(self, topic: str) -> tuple[str, str] | None:
        paused = self._why_paused(topic)
        if paused is not None:
            return TARGET_PAUSED, paused
        if self.limits.is_full(topic):
            return TARGET_LATER, f"records of {topic} are sent one by one, a few at once"
        return None

    def _access(self, topic: str) -> Access | None:
        return self._known.get(topic, _UNKNOWN).access

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

    def _is_decided(self, topic: str, now_s: float, *, is_new: bool) -> bool:
        """Return whether the metadata by which a target is bad may be used: they are new enough, or
        a shard has waited ``_ANSWER_S`` for newer ones. If not, request newer ones.
        """
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
        for topic in {topic for topic, _ in targets if self._access(topic) is None}:
            self._seek(topic, self._monotonic_s())

    def _seek(self, topic: str, now_s: float) -> float:
        """Request a look-up of a topic; return the time since which it is requested, monotonic
        seconds, or minus infinity while too many topics are requested already.
        """
        with self._lock:
            if topic not in self._sought and len(self._sought) >= KNOWN_MAX:
                return _NEVER_S
            since_s = self._sought.setdefault(topic, now_s)
        self._wake.set()
        return since_s

    def _judge(self, target: Target) -> tuple[str, str] | None:
        topic, partition = target
        down = self._given_up(target)
        if down is not None:
            return TARGET_DOWN, f"topic {topic} {down.why}"
        return self._known.get(topic, _UNKNOWN).obstacle(topic, partition, self._silent())

    def _given_up(self, target: Target) -> _Down | None:
        # Partition -1: any partition of the topic.
        now_s, (topic, partition) = self._monotonic_s(), target
        for (name, number), down in self._down.items():
            is_same = partition == number or -1 in (partition, number)
            if name == topic and is_same and down.until_s > now_s:
                return down
        return None

    def changed(self) -> None:
        """Clear ``writable``: targets are judged anew, as pauses or metadata have changed."""
        with self._lock:
            self._changes += 1
            self.writable.clear()

    def forget(self, topic: str) -> None:
        # A broker contradicts the metadata, so they are read again.
        with self._lock:
            if (known := self._known.get(topic)) is not None:
                known.access, known.asked_s, known.told_s = None, _NEVER_S, _NEVER_S
            self.limits.forget(topic)
        self.changed()

    def suspect(self, topic: str, *, is_found: bool) -> None:
        self.limits.suspect(topic, is_found=is_found)
        self.changed()

    def contradicted(self, topic: str) -> None:
        """Forget a topic's metadata, since a broker has refused records that fit them. If that goes
        on, give the topic up: each refusal ends a transaction, with the records of all others.
        """
        now_s = self._monotonic_s()
        known = self._known.setdefault(topic, _Known())
        is_again = now_s - known.contradicted_s <= _GIVEN_UP_MAX_S
        known.contradictions = known.contradictions + 1 if is_again else 1
        known.contradicted_s = now_s
        self.forget(topic)
        if known.contradictions > _CONTRADICTIONS_MAX:
            self.give_up({(topic, -1)}, "refuses records")

    def give_up(self, targets: Collection[Target], why: str, least_s: float = 0.0) -> None:
        """Count targets as bad for a second, or for ``least_s``. If that happens again within a
        minute after the pause, the next one is twice as long, up to 60 s. ``why``: what is wrong;
        it goes on after the topic's name.
        """
        if not targets:
            return
        now_s, first_s = self._monotonic_s(), max(least_s, _GIVEN_UP_S)
        with self._lock:
            recent = {t: d for t, d in self._down.items() if d.until_s + _GIVEN_UP_MAX_S > now_s}
            for target in targets:
                before = recent.get(target)
                lasts_s = min(2 * before.lasts_s, _GIVEN_UP_MAX_S) if before else first_s
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
        old_s = self._monotonic_s() - _RECHECK_S
        asked = [t for t in topics if self._known.get(t, _UNKNOWN).asked_s <= old_s]
        self._ask(asked, _UNSERVED_TIMEOUT_S)
        with self._lock:
            leaderless = [
                known
                for known in map(self._known.get, topics)
                if known and known.access and 0 in known.access.in_sync and not known.in_sync_needed
            ]
            for known in leaderless:
                known.in_sync_needed = 1
        if leaderless:
            self.changed()
        found = {target: self._judge(target) for target in targets}
        return {target: obstacle for target, obstacle in found.items() if obstacle is not None}

    def serve(self) -> None:
        """Wait up to a second until a look-up is requested, and do it."""
        self._wake.wait(1.0)
        self._wake.clear()
        self.look_up()

    def look_up(self) -> None:
        with self._lock:
            sought = list(self._sought)[:_ASKED_MAX]
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
        asked_s = self._monotonic_s()
        found = ask_access(self._admin, topics, timeout_s, may_lack=True)
        wanted = [topic for topic, access in found.items() if self._wants_config(topic, access)]
        configs = dict(ask_configs(self._admin, wanted, timeout_s))
        with self._lock:
            is_changed = False
            for topic, access in found.items():
                is_changed |= self._learn(topic, access, configs.get(topic), asked_s)
            is_changed |= self._forget_some()
        if is_changed:
            self.changed()
        return found.keys()

    def _learn(
        self,
        topic: str,
        access: Access,
        config: Mapping[str, str] | KafkaException | None,
        asked_s: float,
    ) -> bool:
        """Note what was found out about a topic; return whether its targets are judged anew."""
        known = self._known.setdefault(topic, _Known())
        is_changed = known.access not in (None, access)
        if min(access.in_sync, default=0) >= known.in_sync_needed:
            known.in_sync_needed = 0
        if isinstance(config, KafkaException):
            if not known.is_unread:
                _log.warning("topic_config_not_read", topic=topic, why=str(config))
            known.is_unread = True
        elif config is not None:
            known.is_unread = False
            is_changed |= self.limits.learn(topic, config)
            if missing := in_sync_missing(access, config):
                known.in_sync_needed, is_changed = missing, True
        if access.topic_id:
            if known.topic_id not in ("", access.topic_id):
                self.remade.add(topic)
            known.topic_id = access.topic_id
        known.access, known.asked_s, known.told_s = access, asked_s, self._monotonic_s()
        return is_changed

    def _wants_config(self, topic: str, access: Access) -> bool:
        """Return whether a topic's settings have to be read: they are unknown, restrict records, or
        are needed as replicas are out of sync.
        """
        is_usual = topic in self.limits and self.limits.are_usual(topic)
        return is_good(access) and not (
            is_usual and min(access.in_sync, default=0) >= access.copies
        )

    def _forget_some(self) -> bool:
        """If more than ``KNOWN_MAX`` topics are known, forget some of them; return whether one of
        these could be written to.
        """
        if len(self._known) <= KNOWN_MAX:
            return False
        order = sorted(
            self._known, key=lambda t: (is_good(self._known[t].access), self._known[t].asked_s)
        )
        is_any_good = False
        for topic in order[: len(order) - int(KNOWN_MAX * _KEPT)]:
            self.limits.forget(topic)
            is_any_good = is_good(self._known.pop(topic).access)
        return is_any_good
