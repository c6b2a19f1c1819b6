"""Digests of a slice's copies, and execution of repair plans' commands (``replicas.commands``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import structlog

from delayservice.base.clock import Clock
from delayservice.base.errors import KafkaEdgeError, SlotDamagedError
from delayservice.replicas.commands import Command, Detail, Report, encode_message
from delayservice.replicas.digest import frame_hash
from delayservice.slices.digests import SliceDigests
from delayservice.slices.lane import Lane

_DETAIL_ROWS: Final = 2_000

_log = structlog.get_logger(__name__)


# ``lane`` is None if the shard is not served here. Each ``next`` of ``steps`` does one step.
class _Task(NamedTuple):
    command: Command
    lane: Lane | None
    steps: Iterator[None]


class CopyKeeper:
    """Keeper of a slice's copies on this node: updates digests, carries out commands. ``write``
    writes a plan's id and an answer to the repair topic, in the background; commands expire by
    ``clock``, the wall clock.
    """

    def __init__(
        self,
        digests: SliceDigests,
        write: Callable[[str, bytes], None],
        node_id: str,
        clock: Clock,
    ) -> None:
        self.digests = digests
        self._write = write
        self._node_id = node_id
        self._clock = clock
        self._commands: deque[Command] = deque()
        self._task: _Task | None = None

    def ask(self, command: Command) -> None:
        """Queue a command for the thread of the worker's loop. Any thread may call this."""
        self._commands.append(command)

    def turn(self, lanes: Mapping[str, Lane], *, is_owner: bool) -> None:
        """Publish digests, go on with a scan, and do one step of a queued command."""
        self.digests.turn(lanes, is_owner=is_owner)
        if self._task is None and self._commands:
            command = self._commands.popleft()
            lane = lanes.get(command.topic)
            steps = self._carry_out(command, lane, is_owner=is_owner)
            self._task = _Task(command, lane, steps)
        task = self._task
        if task is None:
            return
        if lanes.get(task.command.topic) is not task.lane:
            self._task = None
            self._failed(task.command, "the copy was closed meanwhile")
        elif next(task.steps, self) is self:
            self._task = None

    @property
    def is_busy(self) -> bool:
        return self.digests.is_reading or self._task is not None or bool(self._commands)

    # --- commands ------------------------------------------------------------------------------

    def _carry_out(self, command: Command, kept: Lane | None, *, is_owner: bool) -> Iterator[None]:
        lane = None if kept is None or kept.window is not None else kept
        place = f"{command.topic}:{command.partition}"
        if command.expires_ms < self._clock.wall_ms():
            self._failed(command, "it had expired when its turn came")
        elif lane is None:
            self._failed(command, f"{place} is not kept here")
        elif command.topic_id not in ("", lane.topic_id):
            self._failed(command, f"{command.topic} was made anew since: compare again")
        elif is_owner and (command.replica_only or command.command == "rebuild_copy"):
            self._failed(command, f"this node delivers {place}, and only replicas are rebuilt so")
        elif command.command == "scan":
            self.digests.ask_scan(command.topic, lambda: self._done(command, 0))
        elif command.command == "detail":
            yield from self._detail(command, lane)
        else:
            yield from self._rebuild(command, lane)

    def _detail(self, command: Command, lane: Lane) -> Iterator[None]:
        after, told, scanner = (command.start_ms, -1), 0, lane.store.scanner()
        while True:
            try:
                frames = scanner.read(after, command.stop_ms - 1, _DETAIL_ROWS)
            except SlotDamagedError as damage:
                self._failed(command, str(damage))
                return
            last = not frames
            rows = [
                (key_ms, offset, mark, f"{frame_hash(key_ms, offset, None, payload):016x}")
                for key_ms, offset, mark, payload in frames
            ]
            self._answer(
                Detail(
                    plan=command.plan,
                    step=command.step,
                    node=self._node_id,
                    topic=command.topic,
                    partition=command.partition,
                    rows=rows,
                    last=last,
                )
            )
            told += len(rows)
            if last:
                break
            after = frames[-1][:2]
            yield
        self._done(command, told)

    def _rebuild(self, command: Command, lane: Lane) -> Iterator[None]:
        frames = 0
        if command.command == "rebuild_copy":
            steps = lane.start_over()
        else:
            steps = lane.repairing.repair(command.start_ms, command.stop_ms, command.first_offset)
        try:
            for found in steps:
                frames = found
                yield
        except KafkaEdgeError as exc:  # the store is unchanged
            self._failed(command, str(exc))
            return
        self.digests.ask_scan(command.topic, lambda: self._done(command, frames))

    # --- answers -------------------------------------------------------------------------------

    def _done(self, command: Command, frames: int) -> None:
        _log.info("command_done", command=command.command, topic=command.topic, frames=frames)
        self._report(command, "", frames)

    def _failed(self, command: Command, why: str) -> None:
        _log.warning("command_failed", command=command.command, topic=command.topic, why=why)
        self._report(command, why, 0)

    def _report(self, command: Command, why: str, frames: int) -> None:
        self._answer(
            Report(
                plan=command.plan,
                step=command.step,
                node=self._node_id,
                status="failed" if why else "done",
                detail=why,
                frames=frames,
                at_ms=self._clock.wall_ms(),
            )
        )

    def _answer(self, answer: Report | Detail) -> None:
        self._write(answer.plan, encode_message(answer))
