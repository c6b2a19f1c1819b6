"""Whatever version of store or checkpoint a real node finds, it delivers nothing wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from delayservice.engine.checkpoint import VERSION
from delayservice.store.folder import version_text
from delayservice.store.rocksdb import FORMAT as ROCKS_FORMAT
from delayservice.store.wheel import FORMAT as WHEEL_FORMAT
from tests.integration.bench import Bench, await_true

pytestmark = pytest.mark.cluster

DELAY_MS: Final = 4_000
NOW: Final = {"wheel": WHEEL_FORMAT, "rocksdb": ROCKS_FORMAT}


def content(folder: Path) -> dict[str, bytes]:
    """Everything below the folder but the lock, which says who looked last."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "LOCK"
    }


def stored_and_stopped(bench: Bench, target: str, *sets: str) -> tuple[set[bytes | None], Path]:
    """Records that a node has stored and not delivered; they, and the folder of its store."""
    service = bench.serve(*sets)
    values: set[bytes | None] = {b"value-%d" % number for number in range(20)}
    for value in values:
        bench.send_later(bench.to(target, DELAY_MS), value=value)
    bench.producer.flush()
    bench.read(bench.checkpoint, 1)
    assert service.stop() == 0
    (version,) = (bench.folder / "state").rglob("VERSION")
    assert not bench.read_all(target)
    return values, version.parent


def assert_each_once(bench: Bench, target: str, values: set[bytes | None]) -> None:
    bench.read(target, len(values))
    seen = [one.value for one in bench.read_all(target)]
    assert sorted(seen, key=repr) == sorted(values, key=repr)


@pytest.mark.parametrize("kind", NOW)
def test_a_node_refuses_a_store_of_a_newer_format_and_leaves_it_as_it_is(
    bench: Bench, kind: str
) -> None:
    target = bench.target("newer")
    values, folder = stored_and_stopped(bench, target, f"node.store={kind}")
    (folder / "VERSION").write_bytes(version_text(kind, NOW[kind] + 1))
    before = content(folder)
    service = bench.start(f"node.store={kind}")
    await_true(lambda: len(service.events("worker_died")) >= 2, "it was tried twice")
    told = json.dumps(service.events("worker_failed") + service.events("loop_failed"))
    assert f"{folder} has format {NOW[kind] + 1}, newer than {NOW[kind]}" in told
    assert "run the newer service, or move the folder away" in told
    assert not service.events("took_over")
    service.kill()
    assert content(folder) == before
    (folder / "VERSION").write_bytes(version_text(kind, NOW[kind]))
    bench.serve(f"node.store={kind}")
    assert_each_once(bench, target, values)


def test_a_checkpoint_of_a_newer_version_is_refused_until_replaced(
    bench: Bench,
) -> None:
    target = bench.target("checkpoint")
    values, _ = stored_and_stopped(bench, target)
    newest = bench.read_all(bench.checkpoint)[-1]
    assert newest.value is not None
    newer = json.dumps({"v": VERSION + 1, "something": "else"}).encode()
    bench.send([], topic=bench.checkpoint, key=newest.key, value=newer)
    service = bench.start()
    await_true(lambda: service.events("take_over_failed"), "it says why it does not serve")
    why = service.events("take_over_failed")[0]["why"]
    assert f"holds version {VERSION + 1}, this build reads version {VERSION}: upgrade" in why
    assert not service.events("took_over")
    assert not bench.read_all(target)
    bench.send([], topic=bench.checkpoint, key=newest.key, value=newest.value)
    service.wait_serving(1)
    assert_each_once(bench, target, values)
    assert service.stop() == 0
