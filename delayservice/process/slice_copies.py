"""Digests of the copies of a worker's slices, and distribution of the requests about copies."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from connectors.kafka.copies import CopyLog, RepairWatcher
from delayservice.base.clock import NodeClock
from delayservice.config.settings import Settings
from delayservice.engine.ports import Checkpoints
from delayservice.inspection.asking import answered
from delayservice.replicas.commands import Command, RecordHash, report_on
from delayservice.replicas.digest_rows import retired_row
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.digests import SliceDigests

# Largest number of requests that wait for their slice; the oldest are dropped.
COMMANDS_KEPT: Final = 10_000

Reader = Callable[[Command], tuple[list[RecordHash], bool]]


class SliceCopies:
    """Factory of a ``CopyKeeper`` for each slice of a worker, and distributor of requests: to them,
    or to ``read`` (``answering.hour_records``), which is called on a thread of its own.
    """

    def __init__(
        self, settings: Settings, checkpoints: Checkpoints, clock: NodeClock, read: Reader
    ) -> None:
        self._settings = settings
        self._checkpoints = checkpoints
        self._clock = clock
        self._read = read
        self._reading = ThreadPoolExecutor(1, "copies")
        self._scanning = threading.Lock()
        self._keepers: dict[int, CopyKeeper] = {}
        # Newest requests to this node; other workers may have their slices.
        self._unplaced: deque[Command] = deque(maxlen=COMMANDS_KEPT)
        topics = settings.topics
        # Producer of the digest and repair topics; None: digests are off.
        self._log = (
            CopyLog(settings.kafka.client_config("producer"), topics.digests, topics.repairs)
            if settings.digests.enabled
            else None
        )

    def keeper_of(self, slice_no: int) -> CopyKeeper | None:
        settings, log = self._settings, self._log
        if log is None:
            return None
        digests = SliceDigests(
            slice_no,
            settings.node.node_id,
            checkpoints=self._checkpoints,
            clock=self._clock,
            write=log.write,
            scanning=self._scanning,
            scan_interval_ms=settings.digests.scan_interval_ms,
        )
        self._keepers[slice_no] = CopyKeeper(digests, log.report, self._clock)
        self._hand_over(slice_no)
        return self._keepers[slice_no]

    def watcher(self, attend: Callable[[int], None]) -> RepairWatcher | None:
        if self._log is None:
            return None

        def ask(command: Command) -> None:
            self._unplaced.append(command)
            self._hand_over(command.partition)
            attend(command.partition)

        return RepairWatcher(self._settings.topics.repairs, self._settings.node.node_id, ask)

    def retire(self, slice_no: int, topics: Iterable[str]) -> None:
        self._keepers.pop(slice_no, None)
        if self._log is None:
            return
        for topic in topics:  # other nodes no longer compare their copies with it
            row = retired_row(self._settings.node.node_id, topic, slice_no)
            self._log.write(row, lambda: None)

    def serve(self) -> None:
        if self._log is not None:
            self._log.serve()

    def flush(self, timeout_s: float) -> None:
        if self._log is not None:
            self._log.flush(timeout_s)

    def _hand_over(self, slice_no: int) -> None:
        keeper = self._keepers.get(slice_no)
        if keeper is None:
            return
        # The loop's thread and that of the node's topics both come here. A copy is made without a
        # switch of threads; in a loop over the deque itself, an append would be an error.
        for command in [one for one in self._unplaced.copy() if one.partition == slice_no]:
            with suppress(ValueError):  # another thread was faster
                self._unplaced.remove(command)
                if command.command == "records":
                    self._reading.submit(self._answer, command)
                else:
                    keeper.ask(command)

    def _answer(self, command: Command) -> None:
        found, why = answered(lambda: self._read(command))
        rows, has_more = found or ([], False)
        report = report_on(command, why, self._clock.wall_ms(), rows, has_more=has_more)
        if self._log is not None:
            self._log.report_when_room(report)
