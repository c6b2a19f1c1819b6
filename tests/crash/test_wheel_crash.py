"""The wheel after a crash at every single effect it has on the disk."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from errno import EACCES, EMFILE, ENFILE, ENOMEM, ENOSPC, EPERM
from pathlib import Path
from unittest.mock import patch

import pytest

from delayservice.base.errors import SlotDamagedError, StoreError
from delayservice.engine.cursor import Cursor, Key
from delayservice.store.files import Files
from delayservice.store.ids import IdDatabase, IdIndex
from delayservice.store.wheel import WheelOptions
from tests.crash.crash_disk import (
    Effect,
    Keeps,
    LateExecutor,
    QuietFiles,
    RecordingFiles,
    leave_disk,
)
from tests.crash.model_log import START_MS, ModelLog, read_all, read_all_rebuilding
from tests.wheels import LoneStore, slot_files

OPTIONS = WheelOptions(
    slot_ms=1_000, buffer_bytes_max=6_000, near_bytes_max=3_000, sync_bytes=12_000, handles_max=3
)
KINDS = {"narrow": OPTIONS, "wide": replace(OPTIONS, slot_ms=4_000)}
COUNT, BATCH = 240, 8
LONG = os.environ.get("CRASH_MODE") == "long"


class NoIds(IdDatabase):
    """The id index writes through RocksDB, past the recorder, and has sweeps of its own."""

    def recover(
        self, shards: Sequence[tuple[IdIndex, int, bool]], *, counted: bool = False
    ) -> None:
        pass

    def shard(self, generation: int) -> IdIndex:
        return NoIndex(self, generation)


class NoIndex(IdIndex):
    def append(self, *_: object, **__: object) -> None:
        pass


def make_store(root: Path, files: Files, options: WheelOptions = OPTIONS) -> LoneStore:
    return LoneStore(root, options, files, LateExecutor(), NoIds)


class Run:
    """One life of a store: what it did to the disk, and what had been promised at each effect."""

    def __init__(self, root: Path, options: WheelOptions) -> None:
        self.log = ModelLog(COUNT)
        self.options = options
        self.files = RecordingFiles(root)
        self.horizons: list[tuple[int, int]] = [(0, 0)]
        self.cursors: list[tuple[int, Key]] = [(0, (0, 0))]
        store = make_store(root, self.files, options)
        assert store.open() == 0
        for start in range(0, COUNT, BATCH):
            self.log.feed(store, start, start + BATCH)
            if start % 56 == 48:
                store.sync()
            if start % 56 == 16:
                store.sync(wait=False)
            if start > COUNT // 2 and start % 24 == 0:
                self._prune(store, start)
            if start > COUNT // 3:
                self._read(store)
            self._note(store)
        store.close()
        self.horizons.append((len(self.files.effects), COUNT))

    def _prune(self, store: LoneStore, stop: int) -> None:
        key = self.log.held(stop, (0, 0))[stop // 5][:2]
        self.cursors.append((len(self.files.effects), key))
        store.prune(Cursor(key, stop))

    def _read(self, store: LoneStore) -> None:
        after = self.cursors[-1][1]
        store.read_due(after, max(after[0], START_MS), 3)

    def _note(self, store: LoneStore) -> None:
        durable_offset = store.stats().durable_offset  # may itself let a late sync end
        self.horizons.append((len(self.files.effects), durable_offset))

    def promised(self, effects: int) -> int:
        return max(stop for at, stop in self.horizons if at <= effects)

    def settled(self, effects: int) -> Key:
        return max(key for at, key in self.cursors if at <= effects)


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("life") / "shard", KINDS[request.param])


def test_the_life_has_met_syncs_that_nobody_waited_for(run: Run) -> None:
    # Some horizon was noted right after a call that was not ``sync``.
    stops = [stop for _, stop in run.horizons]
    behind = {stop for number, stop in enumerate(stops) if stop < BATCH * number < COUNT}
    assert len(behind - {0}) >= 4


def lost(_: Effect) -> float:
    return 0.0


def kept(_: Effect) -> float:
    return 1.0


def at_random(seed: int) -> Keeps:
    rng = random.Random(seed)
    return lambda _: rng.choice((0.0, rng.random(), 1.0))


def check_recovery(run: Run, effects: int, root: Path) -> int:
    """Open what a crash left, and go on; returns the horizon."""
    after = run.settled(effects)
    store = make_store(root, QuietFiles(), run.options)
    stop = store.open()
    assert stop >= run.promised(effects)
    run.log.check_label(store, stop, [BATCH])
    assert read_all(store, after) == run.log.held(stop, after)
    for start in range(stop, COUNT, BATCH):
        run.log.feed(store, start, min(COUNT, start + BATCH))
    assert read_all(store, after) == run.log.held(COUNT, after)
    store.close()
    store = make_store(root, QuietFiles(), run.options)
    assert store.open() == COUNT
    assert read_all(store, after) == run.log.held(COUNT, after)
    store.close()
    return stop


@pytest.mark.parametrize("what", ["lost", "kept", "random"])
def test_a_crash_at_any_effect_loses_nothing_durable(run: Run, what: str, tmp_path: Path) -> None:
    effects = run.files.effects
    stops = set()
    for crash in range(len(effects) + 1):
        for seed in range(5 if LONG and what == "random" else 1):
            keeps = {"lost": lost, "kept": kept}.get(what) or at_random(1000 * crash + seed)
            root = tmp_path / f"{crash}-{seed}"
            root.mkdir()
            leave_disk(effects[:crash], keeps, root)
            stops.add(check_recovery(run, crash, root))
    assert len(stops) >= 5


def test_a_write_torn_at_any_byte_loses_nothing_that_was_durable(run: Run, tmp_path: Path) -> None:
    effects = run.files.effects
    writes = [i for i, e in enumerate(effects) if e.kind == "write"]
    rng = random.Random(3)
    for number, crash in enumerate(writes if LONG else rng.sample(writes, min(40, len(writes)))):
        whole = effects[crash]
        torn = Effect(
            "write",
            whole.path,
            whole.inode,
            whole.position,
            whole.data[: rng.randrange(len(whole.data))],
        )
        root = tmp_path / str(number)
        root.mkdir()
        leave_disk([*effects[:crash], torn], kept, root)
        check_recovery(run, crash, root)


class Snapshot:
    """A closed store as bytes, to be damaged in any way."""

    def __init__(self, root: Path, count: int, options: WheelOptions) -> None:
        self.log = ModelLog(count, seed=5)
        self.options = options
        store = make_store(root, QuietFiles(), options)
        store.open()
        for start in range(0, count, 20):
            self.log.feed(store, start, start + 20)
            if start == 20:
                store.sync()
        for _ in range(3):
            store.prune(Cursor((START_MS - 1, 0), 0))
        self.label = store.label
        store.close()
        self.count = count
        self.files = {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.name != "LOCK"
        }

    @property
    def slots(self) -> list[str]:
        return [name for name in self.files if name.startswith("slots/")]

    def copied(self, root: Path, changed: dict[str, bytes | None]) -> LoneStore:
        for name, data in {**self.files, **changed}.items():
            if data is not None:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
        return make_store(root, QuietFiles(), self.options)

    def check(self, root: Path, changed: dict[str, bytes | None]) -> int:
        """Open the store with some files changed (None: gone); returns the horizon."""
        store = self.copied(root, changed)
        stop = store.open()
        assert stop in {0, self.count}
        assert store.label == (self.label if stop else b"")
        # Twice: with a crash between the damage being noticed and the store being mended.
        with_damage = meets_damage(store)
        store.abandon()
        store = make_store(root, QuietFiles(), self.options)
        assert store.open() == stop
        assert store.stats().pending == len(self.log.held(stop, (0, 0)))
        assert meets_damage(store) == with_damage
        found = read_all_rebuilding(store, self.log, self.count, (0, 0))
        assert found == self.log.held(stop, (0, 0))
        self.log.feed(store, stop, self.count)
        store.close()
        store = make_store(root, QuietFiles(), self.options)
        assert store.open() == self.count
        assert read_all(store, (0, 0)) == self.log.held(self.count, (0, 0))
        store.close()
        return stop


def meets_damage(store: LoneStore) -> bool:
    """Whether reading everything meets damage."""
    try:
        read_all(store, (0, 0))
    except SlotDamagedError:
        return True
    return False


@pytest.fixture(scope="module", params=KINDS)
def snapshot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return Snapshot(tmp_path_factory.mktemp("snapshot") / "shard", 60, KINDS[request.param])


def test_a_flipped_byte_of_a_wheel_loses_no_record(snapshot: Snapshot, tmp_path: Path) -> None:
    rng = random.Random(11)
    for name, data in snapshot.files.items():
        step = 1 if LONG or not name.startswith("slots/") else 9
        for position in range(0, len(data), step):
            flipped = bytearray(data)
            flipped[position] ^= 1 << rng.randrange(8)
            root = tmp_path / name.replace("/", "-") / str(position)
            stop = snapshot.check(root, {name: bytes(flipped)})
            if name != "VERSION":  # a blank may become another one, and nothing is wrong
                assert (stop == 0) == (name == "horizon")


def test_a_slot_file_cut_at_any_byte_is_read_again(snapshot: Snapshot, tmp_path: Path) -> None:
    name = snapshot.slots[-1]
    data = snapshot.files[name]
    for size in range(0, len(data), 1 if LONG else 3):
        assert snapshot.check(tmp_path / str(size), {name: data[:size]}) == snapshot.count


def test_rubbish_after_the_good_bytes_is_cut_off(snapshot: Snapshot, tmp_path: Path) -> None:
    changed = {n: d + b"rubbish" * 20 for n, d in snapshot.files.items() if n.startswith("slots/")}
    assert snapshot.check(tmp_path / "slots", {**changed}) == snapshot.count


@pytest.mark.parametrize("lost_name", ["horizon", "VERSION"])
def test_a_lost_manifest_starts_over(snapshot: Snapshot, lost_name: str, tmp_path: Path) -> None:
    gone = {name: None for name in snapshot.files if name.startswith(lost_name)}
    assert gone
    assert snapshot.check(tmp_path / "s", {**gone}) == 0


def test_every_lost_slot_file_is_noticed(snapshot: Snapshot, tmp_path: Path) -> None:
    for number, name in enumerate(snapshot.slots):
        assert snapshot.check(tmp_path / str(number), {name: None}) == snapshot.count


def test_the_loss_of_every_slot_file_is_noticed_at_once(snapshot: Snapshot, tmp_path: Path) -> None:
    gone = dict.fromkeys(snapshot.slots)
    assert snapshot.check(tmp_path / "s", {**gone}) == snapshot.count


def test_a_slot_file_in_place_of_another_is_noticed(snapshot: Snapshot, tmp_path: Path) -> None:
    first, second = snapshot.slots[:2]
    swapped = {first: snapshot.files[second], second: snapshot.files[first]}
    assert snapshot.check(tmp_path / "s", {**swapped}) == snapshot.count


@pytest.mark.parametrize("code", [ENOSPC, EMFILE, ENFILE, EACCES, EPERM, ENOMEM])
def test_lack_of_memory_files_or_rights_is_no_damage(
    snapshot: Snapshot, code: int, tmp_path: Path
) -> None:
    store = snapshot.copied(tmp_path, {})
    lack = OSError(code, os.strerror(code), "a file")
    for _ in range(2):  # the lock is given back
        with (
            patch("delayservice.store.wheel.wheel.read_horizon", side_effect=lack),
            pytest.raises(StoreError, match=os.strerror(code)),
        ):
            store.open()
    assert store.open() == snapshot.count
    with (
        patch.object(QuietFiles, "read_at", side_effect=lack),
        pytest.raises(StoreError, match=f"can't read the store .*{os.strerror(code)}"),
    ):
        read_all(store, (0, 0))
    assert read_all(store, (0, 0)) == snapshot.log.held(snapshot.count, (0, 0))
    assert not list(tmp_path.glob("quarantine/*"))
    store.close()


def test_damage_survives_a_sync_and_a_restart_before_the_rebuild(tmp_path: Path) -> None:
    root = tmp_path / "shard"
    log = ModelLog(200, seed=5)
    store = make_store(root, QuietFiles())
    store.open()
    log.feed(store, 0, 100)
    store.sync()
    victim = slot_files(root)[1]
    victim.write_bytes(victim.read_bytes()[:-1])
    assert meets_damage(store)
    log.feed(store, 100, 200)
    store.close()
    store = make_store(root, QuietFiles())
    assert store.open() == 200
    assert meets_damage(store)
    assert read_all_rebuilding(store, log, 200, (0, 0)) == log.held(200, (0, 0))
    store.close()
    assert len(list(root.glob("quarantine/*"))) == 1


def test_records_appended_between_damage_and_rebuild_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "shard"
    log = ModelLog(200, seed=5)
    store = make_store(root, QuietFiles())
    store.open()
    log.feed(store, 0, 100)
    store.sync()
    victim = slot_files(root)[1]
    victim.write_bytes(b"")
    with pytest.raises(SlotDamagedError) as caught:
        read_all(store, (0, 0))
    damage = caught.value
    log.feed(store, 100, 200)
    again = [f for f in log.held(100, (0, 0)) if damage.start_ms <= f[0] < damage.stop_ms]
    store.rebuild(damage.start_ms, damage.stop_ms, again)
    assert read_all(store, (0, 0)) == log.held(200, (0, 0))
    store.close()
