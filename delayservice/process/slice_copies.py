"""Digests of the copies of a worker's slices, and distribution of the commands to repair them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from connectors.kafka.copies import CopyLog, RepairWatcher
from delayservice.base.clock import NodeClock
from delayservice.config.settings import Settings
from delayservice.engine.ports import Checkpoints
from delayservice.replicas.commands import Command
from delayservice.replicas.digest_rows import CopyId, retired_row
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.digests import SliceDigests

# Largest number of repair commands that wait for their slice; the oldest are dropped.
COMMANDS_KEPT: Final = 10_000


class SliceCopies:
    """Factory of a ``CopyKeeper`` for each slice of a worker, and distributor of repair commands to
    them.
    """

    def __init__(self, settings: Settings, checkpoints: Checkpoints, clock: NodeClock) -> None:
        self._settings = settings
        self._checkpoints = checkpoints
        self._clock = clock
        self._scanning = threading.Lock()
        self._keepers: dict[int, CopyKeeper] = {}
        # Newest repair commands for this node; other workers may have their slices.
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
            store_kind=settings.node.store,
        )
        keeper = CopyKeeper(digests, log.answer, settings.node.node_id, self._clock)
        self._keepers[slice_no] = keeper
        self._hand_over(keeper, slice_no)
        return keeper

    def watcher(self, attend: Callable[[int], None]) -> RepairWatcher | None:
        if self._log is None:
            return None

        def ask(command: Command) -> None:
            self._unplaced.append(command)
            keeper = self._keepers.get(command.partition)
            if keeper is not None:
                self._hand_over(keeper, command.partition)
                attend(command.partition)

        return RepairWatcher(self._settings.topics.repairs, self._settings.node.node_id, ask)

    def retire(self, slice_no: int, topics: Iterable[str]) -> None:
        self._keepers.pop(slice_no, None)
        if self._log is None:
            return
        for topic in topics:  # other nodes no longer compare their copies with it
            place = CopyId(self._settings.node.node_id, topic, "", slice_no, "")
            self._log.write(retired_row(place), lambda: None)

    def serve(self) -> None:
        if self._log is not None:
            self._log.serve()

    def flush(self, timeout_s: float) -> None:
        if self._log is not None:
            self._log.flush(timeout_s)

    def _hand_over(self, keeper: CopyKeeper, slice_no: int) -> None:
        for command in [one for one in self._unplaced if one.partition == slice_no]:
            with suppress(ValueError):  # another thread was faster
                self._unplaced.remove(command)
                keeper.ask(command)
