"""The drill's injector is apart from what it judges, and its verdict is exact."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from delayservice.core.contract import Contract, Contracts
from delayservice.core.digest import frame_hash
from delayservice.core.entry import CANCEL, FIRE, INVALID, SCHEDULE
from delayservice.core.partitioner import partition_for
from delayservice.core.record import RecordReader
from delayservice.dev.drill.judge import judge
from delayservice.dev.drill.sabotage import Defect, Delivery, Output, Saboteur
from delayservice.dev.drill.service import ROLL_WINDOW_MS, Record, Shard
from delayservice.dev.drill.users import Names, Request, Users
from delayservice.dev.drill.wire import contract, pack, partition_of, record_hash
from delayservice.errors import DelayServiceError
from tests.unit.test_imports import ROOT, imports_of

FOLDER = ROOT / "delayservice" / "dev" / "drill"
JUDGING = {"run.py", "report.py"}
"""They start the jobs and tell what came of it; all others make what is judged, or judge."""
FORBIDDEN = (
    "connectors.spark",
    "delayservice.core",
    "pyspark",
)
NOW_MS = 1_800_000_000_000
NAMES = Names("test", 4, b"secret")
KINDS = {"schedule": SCHEDULE, "cancel": CANCEL, "fire": FIRE, "": INVALID}


@pytest.mark.parametrize(
    "path", [p for p in sorted(FOLDER.glob("*.py")) if p.name not in JUDGING], ids=lambda p: p.name
)
def test_the_injector_shares_no_code_with_what_it_judges(path: Path) -> None:
    wrong = [name for name in imports_of(path) if name.startswith(FORBIDDEN)]
    assert not wrong


def test_preparing_a_drill_loads_no_job_and_no_spark() -> None:
    program = (
        "import sys, delayservice.dev.drill.run\n"
        "print([m for m in sys.modules if m.startswith(('connectors.spark', 'pyspark'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# --- formulas that were written twice agree ------------------------------------------------------


def test_partitions_and_hashes_are_those_of_the_service() -> None:
    rng = random.Random(7)
    for length in range(30):
        key = rng.randbytes(length)
        assert partition_of(key, 7) == partition_for(key, 7)
        assert record_hash(NOW_MS + length, length, key) == frame_hash(
            NOW_MS + length, length, None, key
        )


def test_the_service_reads_every_request_as_the_drill_means_it() -> None:
    rules = Contract.from_json(contract([NAMES.allow], ROLL_WINDOW_MS))
    users, seen = Users(NAMES, random.Random(3)), set()
    for offset in range(5_000):
        asked = users.request(NOW_MS)
        reader = RecordReader(NAMES.delay, asked.partition, Contracts([(0, rules)]), [NAMES.secret])
        row = (offset, NOW_MS, asked.key, asked.value, asked.headers)
        (entry,) = reader.read_batch([row])
        seen.add((asked.op, asked.code))
        assert entry[1] == KINDS[asked.op], asked
        if asked.op == "schedule":
            key_ms = min(asked.due_ms, NOW_MS + ROLL_WINDOW_MS)
            assert entry[2:4] == (key_ms, asked.record_id)
            assert pack(entry[4]) == Record(offset, key_ms, asked).payload()
        elif asked.op:
            assert entry[3] == asked.record_id
        else:
            assert entry[5][0] == asked.code
    assert len(seen) == 10


# --- the service of the drill --------------------------------------------------------------------


def request(op: str = "schedule", due_ms: int = NOW_MS, record_id: bytes | None = None) -> Request:
    return Request(0, NOW_MS, None, b"v", [], op, due_ms, "a", record_id=record_id)


def test_a_cancel_settles_what_waits_and_itself_and_the_next_one_meets_nothing() -> None:
    shard = Shard((NAMES.delay, 0))
    far_ms = NOW_MS + 5_000
    assert (
        list(shard.pass_offset(Record(0, far_ms, request(due_ms=far_ms, record_id=b"i")), 1)) == []
    )
    steps = list(shard.pass_offset(Record(1, 0, request("cancel", record_id=b"i")), NOW_MS))
    assert [(s.act, s.record.offset, s.text, s.by) for s in steps] == [
        ("control", 1, "cancelled", -1),
        ("cancelled", 0, "", 1),
    ]
    (again,) = shard.pass_offset(Record(2, 0, request("cancel", record_id=b"i")), NOW_MS)
    assert again.text == "not_pending"
    assert [(r.offset, r.mark) for r in shard.marked] == [(0, 1)]
    assert list(shard.advance(far_ms + 1, 50)) == []


def test_what_waits_beyond_the_window_is_copied_and_the_rest_goes_when_it_is_due() -> None:
    shard = Shard((NAMES.delay, 0))
    far = request(due_ms=NOW_MS + 2 * ROLL_WINDOW_MS)
    for record in (Record(0, NOW_MS + ROLL_WINDOW_MS, far), Record(1, NOW_MS, request())):
        assert list(shard.pass_offset(record, NOW_MS)) == []
    steps = list(shard.advance(NOW_MS + ROLL_WINDOW_MS + 1, 50))
    assert [(s.act, s.record.offset) for s in steps] == [("deliver", 1), ("copy", 0)]
    assert shard.key == (NOW_MS + ROLL_WINDOW_MS, 0)
    assert not shard.waiting


def test_a_canceller_waits_for_the_copy_that_it_hits() -> None:
    shard = Shard((NAMES.delay, 0))
    key_ms, due_ms = NOW_MS + ROLL_WINDOW_MS, NOW_MS + 2 * ROLL_WINDOW_MS
    far, cancel = (
        request(due_ms=due_ms, record_id=b"i"),
        Record(1, 0, request("cancel", due_ms, b"i")),
    )
    assert list(shard.pass_offset(Record(0, key_ms, far), NOW_MS)) == []
    (step,) = shard.advance(key_ms + 1, 50)
    assert shard.awaits(cancel)
    copy = step.again
    assert copy is not None
    assert copy.base == 1
    copy.offset = 2
    assert not shard.awaits(cancel)
    told = [(s.act, s.record.offset) for s in shard.pass_offset(cancel, key_ms)]
    assert told == [("control", 1), ("cancelled", 2)]
    assert list(shard.pass_offset(copy, key_ms)) == []
    assert [(r.offset, r.mark) for r in shard.marked] == [(2, 1)]


# --- injected and judged -------------------------------------------------------------------------


def delivery(offset: int) -> Delivery:
    told = [
        ("delay-due-at", b"%d" % NOW_MS),
        ("delay-source", b"d:0:%d" % offset),
        ("delay-settles", b"%d" % offset),
    ]
    own = [("trace", b"1"), ("hop", b"2")]
    output = Output(("a", 1), b"k", b"value", list(own), list(told), NOW_MS + 50)
    return Delivery(("d", 0), offset, NOW_MS, is_keyed=True, output=output)


def saboteur(kinds: list[str], records: int = 1_000) -> Saboteur:
    rng = random.Random(5)
    return Saboteur(kinds, records, rng, ("a", "b"), 4, "letters", "outcomes", {("d", 0): [9_999]})


@pytest.mark.parametrize("kind", sorted(Saboteur.KINDS))
def test_each_kind_of_defect_spoils_one_record_and_no_other(kind: str) -> None:
    injector = saboteur([kind])
    written: dict[int, list[Output]] = {}
    for offset in range(1_000):
        outputs = written.setdefault(offset, [])

        def write(output: Output, outputs: list[Output] = outputs) -> int:
            outputs.append(output)
            return len(outputs)

        injector.deliver(delivery(offset), write)
    (defect,) = injector.defects
    spoiled = [n for n, outputs in written.items() if outputs != [delivery(n).output]]
    assert len(spoiled) == 1
    assert not injector.waiting
    (found,) = defect.findings
    assert found[3] == (9_999 if kind == "extra_output" else spoiled[0])


def test_more_defects_than_records_are_refused() -> None:
    with pytest.raises(DelayServiceError, match="too many"):
        saboteur(["dropped"] * 10, records=20)


def test_a_defect_counts_only_when_all_of_it_is_found_and_the_rest_is_invented() -> None:
    defects = [
        Defect("missing_slot", "disks", (("missing", 1), ("missing", 2))),
        Defect("dropped", "topics", (("lost", 7),)),
    ]
    all_of_it = [("disks", "missing", 1), ("disks", "missing", 2), ("topics", "lost", 7)]
    good = judge(defects, all_of_it, 10, {"audit": 2.0})
    assert good.is_good
    assert good.to_json()["rows_per_s"] == 5
    half = judge(defects, all_of_it[1:], 10, {})
    assert (half.found["missing_slot"], half.missed) == (0, (("disks", "missing", 1),))
    assert not half.is_good
    twice = judge(defects, [*all_of_it, all_of_it[2]], 10, {})
    assert (twice.invented, twice.inventions) == (1, (all_of_it[2],))
    elsewhere = judge(defects[1:], [("topics", "lost", 8)], 10, {})
    assert (elsewhere.found["dropped"], elsewhere.invented) == (0, 1)
