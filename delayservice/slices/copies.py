"""Digests of a slice's copies, and commands that change or check them (``replicas.commands``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import structlog

from delayservice.base.clock import Clock
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.engine.ports import Background
from delayservice.replicas.commands import Command, Report, report_on
from delayservice.slices.digests import SliceDigests
from delayservice.slices.lane import Lane

_OWNS: Final = (
    "this node delivers {}, and only replicas are rebuilt: restart the node, so that another one "
    "takes the slice over; a single node starts over if its folder of the shard is removed while "
    "it is stopped"
)

_log = structlog.get_logger(__name__)


class CopyRefusedError(DelayServiceError):
    """Command about a copy that this node does not carry out."""


def copy_of(command: Command, lanes: Mapping[str, Lane], now_ms: int) -> Lane:
    """Return the lane with the copy that a command is about; raise ``CopyRefusedError`` if the
    command must not begin at ``now_ms``, epoch milliseconds.
    """
    if command.expires_ms < now_ms:
        raise CopyRefusedError("it had expired when its turn came")
    lane = lanes.get(command.topic)
    if lane is None or lane.window is not None:  # the log is the store of a level topic
        raise CopyRefusedError(f"{command.topic}:{command.partition} is not kept here")
    if command.topic_id not in ("", lane.topic_id):
        raise CopyRefusedError(f"{command.topic} was made anew since: compare again")
    return lane


def _check_is_replica(command: Command, *, is_owner: bool) -> None:
    if is_owner:
        raise CopyRefusedError(_OWNS.format(f"{command.topic}:{command.partition}"))


# Each ``next`` of ``steps`` does one step.
class _Task(NamedTuple):
    command: Command
    lane: Lane | None
    steps: Iterator[None]


class CopyKeeper:
    """Keeper of a slice's copies on this node: updates digests, and carries out the commands
    ``scan`` and ``rebuild``, one after another. ``report`` writes in the background; commands
    expire by ``clock``, the wall clock.
    """

    def __init__(
        self, digests: SliceDigests, report: Callable[[Report], None], clock: Clock
    ) -> None:
        self.digests = digests
        self._report = report
        self._clock = clock
        self._commands: deque[Command] = deque()
        self._task: _Task | None = None

    def ask(self, command: Command) -> None:
        """Queue a command for the thread of the worker's loop. Any thread may call this."""
        self._commands.append(command)

    def turn(self, lanes: Mapping[str, Lane], reading: Background, *, is_owner: bool) -> None:
        """Publish digests, go on with a scan, and do one step of a queued command; ``reading`` asks
        Kafka for it.
        """
        self.digests.turn(lanes, is_owner=is_owner)
        if self._task is None and self._commands:
            command = self._commands.popleft()
            steps = self._carry_out(command, lanes, reading, is_owner=is_owner)
            self._task = _Task(command, lanes.get(command.topic), steps)
        task = self._task
        if task is None:
            return
        if lanes.get(task.command.topic) is not task.lane:
            self._task = None
            self._over(task.command, "the copy was closed meanwhile")
        elif next(task.steps, self) is self:
            self._task = None

    @property
    def is_busy(self) -> bool:
        return self.digests.is_reading or self._task is not None or bool(self._commands)

    def _carry_out(
        self, command: Command, lanes: Mapping[str, Lane], reading: Background, *, is_owner: bool
    ) -> Iterator[None]:
        try:
            lane = copy_of(command, lanes, self._clock.wall_ms())
            if command.command == "rebuild":
                _check_is_replica(command, is_owner=is_owner)
                yield from lane.start_over(reading)
        except (CopyRefusedError, KafkaEdgeError) as exc:  # the store is unchanged
            self._over(command, str(exc))
        else:
            self.digests.ask_scan(command.topic, lambda: self._over(command, ""))

    def _over(self, command: Command, why: str) -> None:
        if why:
            _log.warning("command_failed", command=command.command, topic=command.topic, why=why)
        else:
            _log.info("command_done", command=command.command, topic=command.topic)
        self._report(report_on(command, why, self._clock.wall_ms()))
