"""What people are told of records that go home, or that wait for it."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connectors.spark.schedule.check import RowRules, ScheduleCheck
from delayservice.commands import record as showing
from delayservice.commands.sending import Forecast, Outgoing
from delayservice.config.settings import load
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import HOMEBOUND
from delayservice.contract.partitioner import partition_for
from delayservice.contract.record import RecordReader
from delayservice.engine.cursor import Cursor
from delayservice.inspection import looking
from tests.unit.test_admin_answers import ROW

TOPIC = "delay_topic_any"
NOW_MS = 1_800_000_000_000
FAR = next(b"%d" % n for n in range(100) if partition_for(b"%d" % n, 2) == 1)
"""At home in partition 1; users write to partition 0."""
CONTRACT = Contract(id_partitions=2)
HEADERS = [("delay-after", b"60000"), ("delay-target-topic", b"orders"), ("delay-id", FAR)]
WAITS = replace(
    ROW,
    partition=0,
    next_ms=NOW_MS + 60_000,
    due_ms=NOW_MS,
    target=TOPIC,
    target_partition=1,
    id=FAR,
    source=f"{TOPIC}:0:3",
    attempt=2,
)


@pytest.mark.parametrize(
    ("passed", "state", "word"), [(3, "pending", "about to be sent"), (4, "settled", "was sent")]
)
def test_a_forwarded_record_shows_its_home(passed: int, state: str, word: str) -> None:
    reader = RecordReader(TOPIC, 0, Contracts([(0, CONTRACT)]), [])
    entry = reader.read(3, NOW_MS, None, b"x", [*HEADERS])
    assert entry[1] == HOMEBOUND
    shard = SimpleNamespace(committed=Cursor((0, 0), passed))
    lane = SimpleNamespace(shard=shard, reader=reader, topic=TOPIC, partition=0, place=(TOPIC, 0))
    fate = looking._locate_other(cast("Any", lane), entry)
    assert fate.state == state
    assert word in fate.detail
    assert "to partition 1, the home of its id" in fate.detail
    assert (fate.record.source if fate.record else "") == (f"{TOPIC}:0:3" if passed == 4 else "")


def test_a_record_waiting_for_its_home_says_so() -> None:
    assert looking._waits(WAITS) == "forwarded to partition 1, the home of its id"
    assert looking._waits(replace(WAITS, target="orders")) == "it waits for its due time"


def test_the_command_shows_what_waits_for_its_home() -> None:
    record = asdict(WAITS) | {"id": None, "fires": []}
    assert showing._cells(record)[-1] == "try 2, forwarded to its home partition"
    assert showing._cells({**record, "target": "orders"})[-1] == "try 2"
    lines = dict(showing._lines({**record, "key": None, "value": None}))
    assert lines["forwarded to its home partition"] == f"{TOPIC}:1"
    assert "target" not in lines


def test_a_record_is_judged_before_it_is_forwarded() -> None:
    """The command does not know yet in which partition the record will lie."""
    sets = ["kafka.bootstrap=127.0.0.1:1", "delivery.id_partitions=2"]
    settings = load(None, [*sets, "targets.default.allow=others"], {})
    record = Outgoing(TOPIC, None, b"x", [*HEADERS], None, None)
    assert "(target-denied)" in str(Forecast(settings, record).doubt(NOW_MS))


def test_a_job_schedules_what_goes_home() -> None:
    judge = ScheduleCheck(RowRules(TOPIC, (CONTRACT,), NOW_MS, {"orders": 1}, 1 << 20))
    assert judge.refusal((0, NOW_MS, FAR, b"x", [*HEADERS])) is None
    missing = ScheduleCheck(RowRules(TOPIC, (CONTRACT,), NOW_MS, {}, 1 << 20))
    assert (missing.refusal((0, NOW_MS, FAR, b"x", [*HEADERS])) or ("",))[0] == "target-unknown"
