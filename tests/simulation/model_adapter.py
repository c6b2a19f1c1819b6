"""Drives the real shard through walks of the protocol's model, step by step, and compares.

The model lies outside the project, beside it. Where its rules and ours differ, the walk takes
another step: no clock steps back, and no canceller overlaps a roll that has not come back (there H
waits in the project). K does not wait for H, which is the model's flag ``freeK``. At take-over the
model waits for the end of the log only where rolls exist.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from delayservice.contract.codec import Payload, encode_payload
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import CANCEL, COPY, SCHEDULE, Entry
from delayservice.contract.record import RecordReader
from delayservice.contract.targets import Allowlist
from delayservice.engine import outcome
from delayservice.engine.cursor import START_KEY, Cursor, Key
from delayservice.engine.outcome import Output
from delayservice.engine.routes import Routes
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.engine.verdicts import Verdicts
from delayservice.process.cron import cron_time
from tests.simulation.history import ViolationError
from tests.simulation.sim_store import SimStore
from tests.unit.known_targets import KnownTargets

MODEL = Path(__file__).parents[3] / "shared" / "protocol_model" / "model.py"

TOPIC, SECRET = "delay_topic_any", b"secret"
_FOREVER = 99
_OUTPUTS_MAX = 1_000
_STEPS = 90


def load_model() -> ModuleType:
    """The model as a module."""
    spec = importlib.util.spec_from_file_location("protocol_model", MODEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _nowhere(_what: str) -> None:
    """No crash comes inside a step: the model's steps are whole."""


def nothing_fired(key: Key) -> Payload:
    """The model knows no fire."""
    raise AssertionError(f"{key} was asked for")


class Node:
    """One real shard with its store. A role is only what the model says it is."""

    def __init__(self, roll_window_ms: int) -> None:
        self._routes = Routes(
            "dead",
            "outcomes",
            SECRET,
            roll_window_ms,
            0,
            (),
            cron_time,
            allowlist=lambda topic: Allowlist(topic, ["*"]),
        )
        self.restart(0, (), [])

    def restart(self, stop: int, kept: Any, log: list[Entry]) -> None:
        """Be born again with what the model says the store has kept."""
        self.store = SimStore(Random(0), _nowhere, tidy=False)
        self.shard = Shard(Settler(TOPIC, 0, self._routes, Verdicts(), KnownTargets()), stop)
        self.end = 0
        for offset, mark in kept:
            _, _, key_ms, record_id, payload, _ = log[offset]
            self.store._frames[offset] = (key_ms, encode_payload(payload))
            if record_id is not None:
                self.store._named.setdefault(record_id, {})[offset] = key_ms
            if mark >= 0:
                self.store._marks[offset] = (mark, key_ms)
        self.store._stop_offset = stop

    def ingest(self, offset: int, log: list[Entry]) -> None:
        """Read one offset."""
        entries, stop = [log[offset]], offset + 1
        needed = self.shard.scans_needed(offset, entries, stop)
        scans = {scan.copy_offset: _x_of(log, scan.record_id, scan.base, offset) for scan in needed}
        added = self.shard.ingest(offset, entries, stop, scans, self.store.latest_unmarked)
        self.store.append(added.frames, added.named, added.marks, self.shard.stored)

    def walk_offset(self, h: int, now_ms: int, log: list[Entry]) -> list[Output]:
        """Advance H to ``h``, where the model cuts."""
        shard = self.shard
        while shard.seen < shard.end:
            self.ingest(shard.seen, log)
        while shard.read < h:
            self.ingest(shard.read, log)
        beyond = [entry for entry in shard._queue if entry[0] >= h]
        read = shard.read
        shard._queue = [entry for entry in shard._queue if entry[0] < h]
        shard.read = h
        outputs = shard.advance_offset(now_ms, _OUTPUTS_MAX, nothing_fired)
        shard._queue += beyond
        shard.read = read
        return outputs

    def walk_key(self, k: Key, now_ms: int) -> list[Output]:
        """Advance K to ``k``, where the model cuts."""
        if not self.shard.may_advance_key:
            raise ViolationError("K may not advance where the model's does")
        frames = self.store.read_due(self.shard.staged.key, now_ms, _OUTPUTS_MAX)
        return self.shard.advance_key([frame for frame in frames if frame[:2] <= k], now_ms)


class Walk:
    """One random walk of the model and its shadow in the real code."""

    def __init__(self, model: ModuleType, seed: int, window: int | None) -> None:
        self._model = model
        self._rng = Random(seed)
        horizon = 5
        script = [self._wish(horizon) for _ in range(self._rng.randint(2, 7))]
        budget = {"crashes": 2, "takeovers": 4, "unc": 2, "backs": 0}
        self._cfg = model.Cfg(script, ("freeK",), T=horizon, W=window, canon=False, **budget)
        self._state = model.init_state(self._cfg)
        self._window = window
        contract = Contract(roll_window_ms=window or _FOREVER)
        self._reader = RecordReader(TOPIC, 0, Contracts([(0, contract)]), (SECRET,))
        self._log: list[Entry] = []
        self._nodes = [Node(window or _FOREVER) for _ in "AB"]
        self._in_doubt: list[Output] = []
        self._outcomes: dict[int, object] = {}
        self.trace = [str(script)]
        self.commits = 0

    def _wish(self, horizon: int) -> tuple[Any, ...]:
        name = self._rng.choice(["x", "x", "x", "y", None])
        if name and self._rng.random() < 0.4:
            return ("C", name)
        return ("A", self._rng.randint(1, horizon), name)

    def run(self) -> None:
        """Walk until the model has no step left, or for long enough."""
        for _ in range(_STEPS):
            steps = [s for s in self._model.succ(self._cfg, self._state) if ", 99)" not in s[0]]
            if not steps:
                return
            kinds: dict[str, list[Any]] = {}
            for step in steps:
                kinds.setdefault(_kind(step[0]), []).append(step)
            label, state = self._rng.choice(kinds[self._rng.choice(sorted(kinds))])
            self.trace.append(label)
            before, self._state = self._state, state
            self._shadow(label, before, state)

    def _shadow(self, label: str, before: Any, after: Any) -> None:
        """Do in the real code what the model has done."""
        if label.startswith("append"):
            self._log.append(_entry(len(self._log), after[0][-1]))
        elif label.startswith("uncertain"):
            self._commit_doubt()
        elif label[:2] in ("A ", "B "):
            self._shadow_node("AB".index(label[0]), label[2:], before, after)
        if self._outcomes != dict(after[8]):
            raise ViolationError(f"outcomes {self._outcomes}, the model has {dict(after[8])}")

    def _shadow_node(self, number: int, label: str, before: Any, after: Any) -> None:
        node = self._nodes[number]
        stop, kept = after[9][number][:2]
        if label.startswith("ingests"):
            node.ingest(node.shard.stored, self._log)
        elif label.startswith("prunes"):
            node.store.prune(_cursor(before[4]))
        elif label.startswith("crashes"):
            node.restart(stop, kept, self._log)
        elif label.startswith("init_"):
            if "committed" in label:
                self._commit_doubt()
            self._in_doubt = []
            node.end = len(self._log)
        elif label.startswith("takes over"):
            cursor = _cursor(after[4])
            end = cursor.offset if self._window is None else node.end
            node.shard.take_over(cursor, node.store.marked_from(cursor.offset), end)
        elif label.startswith("fenced"):
            node.shard.follow(Cursor())
        else:
            self._shadow_commit(node, label, before, after)

    def _shadow_commit(self, node: Node, label: str, before: Any, after: Any) -> None:
        uncertain = "UNCERTAIN" in label
        cursor = _cursor(after[7][2:4] if uncertain else after[4])
        now_ms = before[2]
        if label.startswith("step1"):
            outputs = node.walk_offset(cursor.offset, now_ms, self._log)
        else:
            outputs = node.walk_key(cursor.key, now_ms)
        if node.shard.staged != cursor:
            raise ViolationError(f"cursor {node.shard.staged}, the model has {cursor}")
        if uncertain:
            self._in_doubt = outputs
            node.shard.follow(Cursor())
            return
        node.shard.commit()
        self._commit(outputs)

    def _commit_doubt(self) -> None:
        outputs, self._in_doubt = self._in_doubt, []
        self._commit(outputs)

    def _commit(self, outputs: list[Output]) -> None:
        self.commits += 1
        for output in outputs:
            offset = output[7]
            if offset in self._outcomes:
                raise ViolationError(f"offset {offset} settled twice")
            self._outcomes[offset] = _code(output, self._log[offset])
            if output[0] == outcome.ROLLED:
                self._append_copy(output)

    def _append_copy(self, output: Output) -> None:
        offset = len(self._log)
        entry = self._reader.read(offset, 0, output[3], output[4], output[5])
        _, due, roll_at, name, _, base = self._state[0][offset]
        expected = (COPY, min(due, roll_at), _id(name), base)
        if (entry[1], entry[2], entry[3], entry[5]) != expected:
            raise ViolationError(f"copy {entry}, the model has {expected}")
        self._log.append(entry)


def _kind(label: str) -> str:
    for word in (" crashes ", "clock", "init_", " ingests ", "UNCERTAIN", " commit ", " prunes "):
        if word in label:
            return word
    return label


def _entry(offset: int, record: tuple[Any, ...]) -> Entry:
    if record[0] == "C":
        return (offset, CANCEL, 0, _id(record[1]), (None, None, []), None)
    _, due, roll_at, name, _, _ = record
    meta = (_id(name), None, 1, None) if name else None
    payload: Payload = ("orders", -1, None, b"%d" % offset, [], due, meta)
    return (offset, SCHEDULE, min(due, roll_at), _id(name), payload, None)


def _id(name: str | None) -> bytes | None:
    return name.encode() if name else None


def _cursor(checkpoint: Any) -> Cursor:
    key, offset = checkpoint
    return Cursor(START_KEY if key == (-1, -1) else key, offset)


def _x_of(log: list[Entry], name: bytes, base: int, stop: int) -> int:
    found = (e[0] for e in log[base:stop] if e[1] != COPY and e[3] == name)
    return next(found, -1)


def _code(output: Output, entry: Entry) -> object:
    """An outcome as the model spells it."""
    kind = output[0]
    if entry[1] == CANCEL:
        return "c" if kind == outcome.CANCELLED else "n"
    if kind in (outcome.CANCELLED, outcome.REPLACED):
        return ("X", int(dict(output[5])["delay-settled-by"] or b""))
    return "D" if kind == outcome.DELIVERED else "R"
