"""The drill's injector is apart from what it judges, and its verdict is exact."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delay_devtools.commands import CUTS_MAX
from delay_devtools.drill.history import STEPS
from delay_devtools.drill.judge import judge
from delay_devtools.drill.run import KINDS, DrillOptions, cuts_of
from delay_devtools.drill.scenes import DEFECTS, FIRST, LAST, SOUND
from delay_devtools.drill.service import ROLL_WINDOW_MS, ModelShard, OutputRecord, Record
from delay_devtools.drill.stage import Defect, Scenery, Stage
from delay_devtools.drill.users import Request, TopicNames, Users
from delay_devtools.drill.wire import contract, pack, partition_of, record_hash
from delayservice.cli import app
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import CANCEL, FIRE, INVALID, SCHEDULE
from delayservice.contract.partitioner import partition_for
from delayservice.contract.record import RecordReader
from delayservice.replicas.digest import frame_hash
from tests.unit.test_imports import ROOT, imports_of

FOLDER = ROOT / "devtools" / "delay_devtools" / "drill"
JUDGING = "run.py"
"""Module that starts the jobs and shows the result; all others make what is judged, or judge."""
FORBIDDEN = (
    "connectors.spark",
    "delayservice.contract",
    "delayservice.engine",
    "delayservice.replicas",
    "pyspark",
)
FOUND_KINDS = {
    *("lost", "duplicated", "early", "late", "overdue", "altered", "wrong_target", "wrong_outcome"),
    *("not_checkpointed", "unknown_source", "dead_letter_missing_code", "malformed"),
}
"""Every kind of finding of ``docs/audit.md``."""
NOW_MS = 1_800_000_000_000
NAMES = TopicNames("test", 4, b"secret")
READ_AS = {"schedule": SCHEDULE, "cancel": CANCEL, "fire": FIRE, "": INVALID}


@pytest.mark.parametrize(
    "path", [p for p in sorted(FOLDER.glob("*.py")) if p.name != JUDGING], ids=lambda p: p.name
)
def test_the_injector_shares_no_code_with_what_it_judges(path: Path) -> None:
    wrong = [name for name in imports_of(path) if name.startswith(FORBIDDEN)]
    assert not wrong


def test_preparing_a_drill_loads_no_job_and_no_spark() -> None:
    program = (
        "import sys, delay_devtools.drill.run\n"
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
    rules = Contract.from_json(contract(ROLL_WINDOW_MS))
    users, seen = Users(NAMES, random.Random(3)), set()
    for offset in range(5_000):
        asked = users.request(NOW_MS)
        reader = RecordReader(NAMES.delay, asked.partition, Contracts([(0, rules)]), [NAMES.secret])
        row = (offset, NOW_MS, asked.key, asked.value, asked.headers)
        (entry,) = reader.read_batch([row])
        seen.add((asked.op, asked.code))
        assert entry[1] == READ_AS[asked.op], asked
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
    shard = ModelShard((NAMES.delay, 0))
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
    shard = ModelShard((NAMES.delay, 0))
    far = request(due_ms=NOW_MS + 2 * ROLL_WINDOW_MS)
    for record in (Record(0, NOW_MS + ROLL_WINDOW_MS, far), Record(1, NOW_MS, request())):
        assert list(shard.pass_offset(record, NOW_MS)) == []
    steps = list(shard.advance(NOW_MS + ROLL_WINDOW_MS + 1, 50))
    assert [(s.act, s.record.offset) for s in steps] == [("deliver", 1), ("copy", 0)]
    assert shard.key == (NOW_MS + ROLL_WINDOW_MS, 0)
    assert not shard.waiting


def test_a_canceller_waits_for_the_copy_that_it_hits() -> None:
    shard = ModelShard((NAMES.delay, 0))
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


def stage(seed: int = 5) -> Stage:
    shards = [ModelShard((NAMES.delay, number)) for number in range(4)]
    holes = {shard.place: [9_999] for shard in shards}
    shared = Scenery(NAMES, shards, holes, random.Random(seed), NOW_MS + 10**8, NOW_MS - 10**8)
    return Stage(shared, 1, NOW_MS, 7)


def played(name: str) -> tuple[Stage, list[OutputRecord]]:
    """A scene from beginning to end; all that was written, its own offset in each partition."""
    made, written = stage(), list[OutputRecord]()

    def write(output: OutputRecord) -> int:
        written.append(output)
        return sum(one.place == output.place for one in written) - 1

    made.write = write
    for _ in {**DEFECTS, **SOUND}[name](made):
        pass
    return made, written


@pytest.mark.parametrize("name", DEFECTS)
def test_each_scene_of_a_defect_leads_to_a_finding_about_what_it_wrote(name: str) -> None:
    made, written = played(name)
    (found,) = made.findings
    lengths = Counter((output.place) for output in written)
    if found.output is not None:
        assert found.output[2] < lengths[found.output[:2]]
    if (found.topic, found.partition) == made.shard.place and name != "extra_output":
        assert found.offset < lengths[made.shard.place]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_scene_leads_to_no_finding(name: str) -> None:
    made, written = played(name)
    assert written
    assert not made.findings


def test_scenes_are_of_more_than_thirty_kinds_and_have_a_time() -> None:
    assert len(KINDS) > 30
    assert not DEFECTS.keys() & SOUND.keys()
    assert DEFECTS.keys() > (FIRST | LAST)
    assert {found.kind for name in DEFECTS for found in played(name)[0].findings} == FOUND_KINDS


def test_every_kind_is_in_the_table_of_the_page() -> None:
    page = (ROOT / "docs/internals/drill.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name.strip(" `") for row in rows for name in row.split(",")}
    assert named == {*KINDS, *SOUND}


def test_a_defect_counts_only_when_all_of_it_is_found_and_the_rest_is_invented() -> None:
    defects = [
        Defect("missing_minute", ("disks",), (("missing", 1), ("missing", 2))),
        Defect("dropped", ("topics", "follow"), (("lost", 7),)),
    ]
    all_of_it = [
        *(("disks", "missing", 1), ("disks", "missing", 2)),
        *(("topics", "lost", 7), ("follow", "lost", 7)),
    ]
    good = judge(defects, all_of_it, 10, {"audit": 2.0})
    assert good.is_good
    assert good.to_json()["rows_per_s"] == 5
    half = judge(defects, all_of_it[1:], 10, {})
    assert (half.found["missing_minute"], half.missed) == (0, (("disks", "missing", 1),))
    assert not half.is_good
    twice = judge(defects, [*all_of_it, all_of_it[2]], 10, {})
    assert (twice.invented, twice.inventions) == (1, (all_of_it[2],))
    once = judge(defects[1:], all_of_it[2:3], 10, {})
    assert (once.found["dropped"], once.missed) == (0, (("follow", "lost", 7),))
    elsewhere = judge(defects[1:], [("topics", "lost", 8)], 10, {})
    assert (elsewhere.found["dropped"], elsewhere.invented) == (0, 1)


@pytest.mark.parametrize("cuts", [1, 2, 36, CUTS_MAX])
def test_as_many_audits_follow_as_are_asked_for(cuts: int) -> None:
    steps = cuts_of(DrillOptions(cuts=cuts))
    assert len({*steps, STEPS}) == cuts
    assert all(0 <= step < STEPS for step in steps)


def test_more_audits_than_the_history_has_steps_are_refused() -> None:
    done = CliRunner().invoke(app, ["spark", "drill", "--cuts", str(CUTS_MAX + 1)])
    assert done.exit_code == 2
