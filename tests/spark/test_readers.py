"""Plain records read by column expressions are read as Python reads them, whatever they hold."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from connectors.spark.common.frames import arrow_schema, batch_of, table
from connectors.spark.common.session import FAILURES, reason
from connectors.spark.common.topics import ROW_SCHEMA, Span, read_topic
from connectors.spark.ledger.expressions import COMPLETE, DOUBTFUL, HASHED, ORDINARY
from connectors.spark.ledger.facts import LETTER, OUTCOME
from connectors.spark.ledger.native import (
    classified_deliveries,
    classified_outcomes,
    classified_sources,
)
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import COLUMNS, Ledger, name_hash, value_hash
from connectors.spark.ledger.sources import SourceRows
from connectors.spark.ledger.unread import completed
from delay_devtools.cluster import EmbeddedCluster
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.input_headers import KNOWN
from delayservice.contract.names import HOME_NAMES
from tests.conftest import MakeTopic
from tests.unit.spark_world import DELAY, LETTERS, OTHER, OUTCOMES, TARGET
from tests.unit.test_header_table import ROWS as HEADER_ROWS
from tests.unit.test_header_table import TABLE
from tests.unit.test_spark_histories import CASES, made

LEVEL = "delay_topic_1"
TARGETS = (TARGET, "to_d", OTHER)  # with hashes above and below 0
T = 1_790_000_000_000
OLD = Contract(roll_window_ms=10**9)
NEW = Contract(roll_window_ms=10**8, roll_spread_ms=10**6)
STRICT = replace(
    NEW, past_due="dead-letter", max_delay_ms=10**7, header_bytes_max=256, id_bytes_max=64
)
CONTRACTS = {
    (DELAY, 0): Contracts([(0, OLD), (100, NEW)]),
    (DELAY, 1): Contracts([(0, STRICT)]),
    (DELAY, 2): Contracts([(0, replace(NEW, id_partitions=3))]),
    (LEVEL, 0): Contracts([(0, replace(NEW, level_ms=5_000))]),
}
TOPICS = (DELAY, LEVEL, LETTERS, OUTCOMES, *TARGETS)
OF_ROWS = {str(row.contract): Contract(**row.contract) for row in HEADER_ROWS}
"""Contracts of the header table, each in a partition of its own."""
PLACES = {name: (DELAY, number) for number, name in enumerate(OF_ROWS, 3)}
CONTRACTS |= {PLACES[name]: Contracts([(0, contract)]) for name, contract in OF_ROWS.items()}
LEDGER = Ledger(
    shards={place: name_hash(f"{place[0]}:{place[1]}") for place in CONTRACTS},
    topics={name: name_hash(name) for name in TOPICS},
    contracts=CONTRACTS,
    partitions={DELAY: 3 + len(OF_ROWS), LEVEL: 1},
    roles={LETTERS: LETTER, OUTCOMES: OUTCOME},
)
RECORDS = 20_000

Header = tuple[str, bytes | None]
Row = tuple[str, int, int, int, bytes | None, bytes | None, list[Header] | None]


def test_source_records(spark: SparkSession) -> None:
    rng = random.Random(1)
    rows = [source(rng, offset) for offset in range(RECORDS)]
    rows += [
        (*PLACES[str(row.contract)], offset, row.timestamp_ms, row.key, row.value, [*row.headers])
        for offset, row in enumerate(HEADER_ROWS, RECORDS)
    ]
    records = table(spark, ROW_SCHEMA, rows)
    classified = classified_sources(records, LEDGER).persist()
    readings = count_readings(classified)
    assert min(readings[COMPLETE], readings[HASHED], readings[DOUBTFUL]) > RECORDS // 20
    with_ids = classified.where("reading < 2 and id is not null").groupBy("kind").count()
    assert min(row["count"] for row in with_ids.collect()) > RECORDS // 100
    wanted = read(SourceRows(LEDGER).of(batches(rows)))
    assert_same(rows_of(completed(classified, LEDGER)), wanted)


def test_deliveries_and_dead_letters(spark: SparkSession) -> None:
    rng = random.Random(2)
    rows = [output(rng, offset, (LETTERS, TARGET, OTHER)) for offset in range(RECORDS)]
    classified = classified_deliveries(table(spark, ROW_SCHEMA, rows), LEDGER).persist()
    readings = count_readings(classified)
    assert min(readings[n] for n in (COMPLETE, HASHED, DOUBTFUL, ORDINARY)) > RECORDS // 20
    made = rows_of(completed(classified, LEDGER))
    assert_same(settling(made), settling(read(OutputRows(LEDGER).of(batches(rows)))))


def test_outcomes(spark: SparkSession) -> None:
    rng = random.Random(4)
    rows = [output(rng, offset, (OUTCOMES,)) for offset in range(RECORDS)]
    classified = classified_outcomes(table(spark, ROW_SCHEMA, rows), LEDGER).persist()
    readings = count_readings(classified)
    assert min(readings[n] for n in (COMPLETE, DOUBTFUL, ORDINARY)) > RECORDS // 50
    made = rows_of(completed(classified, LEDGER))
    assert_same(settling(made), settling(read(OutputRows(LEDGER).of(batches(rows)))))


def test_java_compiles_what_reads_the_records(spark: SparkSession) -> None:
    """Beyond 8,000 bytes of a method, it interprets them, which takes twice as long."""
    adaptive = "spark.sql.adaptive.enabled"
    usual = str(spark.conf.get(adaptive))
    spark.conf.set(adaptive, value=False)  # else the code of joins is made while they run
    made = cast("Any", spark._jvm).org.apache.spark.sql.execution.debug.package
    schema = f"{ROW_SCHEMA}, value_hash long"
    archived = table(spark, schema, [(DELAY, 0, 0, T, None, None, None, None)]).repartition(2)
    try:
        for classified in (classified_sources, classified_deliveries, classified_outcomes):
            plan = classified(archived, LEDGER)._jdf.queryExecution().executedPlan()
            text = made.codegenString(plan)
            sizes = [int(size) for size in re.findall(r"maxMethodCodeSize:(\d+)", text)]
            assert sizes
            assert max(sizes) < 8_000, classified.__name__
    finally:
        spark.conf.set(adaptive, usual)


def test_a_value_of_which_only_the_hash_was_kept_has_the_same_content(
    spark: SparkSession,
) -> None:
    rng = random.Random(3)
    rows = [source(rng, offset) for offset in range(2_000)]
    whole = rows_of(completed(classified_sources(table(spark, ROW_SCHEMA, rows), LEDGER), LEDGER))
    is_kept = [row[5] is None or b"keep" in row[5] for row in rows]
    hashes = [
        None
        if kept or row[5] is None
        else int.from_bytes(value_hash(row[5]), "little", signed=True)
        for row, kept in zip(rows, is_kept, strict=True)
    ]
    emptied = [
        (*row[:5], row[5] if kept else None, row[6])
        for row, kept in zip(rows, is_kept, strict=True)
    ]
    schema = f"{ROW_SCHEMA}, value_hash long"
    told = [(*row, hashed) for row, hashed in zip(emptied, hashes, strict=True)]
    records = spark.createDataFrame(told, schema)
    made = rows_of(completed(classified_sources(records, LEDGER), LEDGER))
    assert_same(made, whole)


# --- records -------------------------------------------------------------------------------------


def source(rng: random.Random, offset: int) -> Row:
    place = rng.choice([(DELAY, 0), (DELAY, 0), (DELAY, 1), (DELAY, 2), (LEVEL, 0)])
    ms = rng.randrange(2 * 10**8)
    at = rng.choice([("delay-at", b"%d" % (T + ms)), ("delay-after", b"%d" % ms)])
    headers: list[Header] = [at, ("delay-target-topic", rng.choice(TARGETS[:2]).encode())]
    if rng.random() < 0.2:
        headers = [("delay-op", rng.choice([b"cancel", b"fire"]))]
    if len(headers) == 1 or rng.random() < 0.3:
        name = mostly(rng, b"%d" % rng.randrange(1_000), *TABLE["delay-id"])
        headers.insert(rng.randrange(len(headers) + 1), ("delay-id", name))
    for _ in range(mostly(rng, 0, 1, 2) if len(headers) > 2 else rng.randrange(3)):
        at_side = rng.choice([0, len(headers), rng.randrange(len(headers) + 1)])
        headers.insert(at_side, own(rng))
    if rng.random() < 0.4:
        spoil(rng, headers)
    kept: list[Header] | None = None if rng.random() < 0.02 else headers
    return (*place, offset, int(mostly(rng, T, 0, -1, 2**52)), content(rng), content(rng), kept)


def mostly(rng: random.Random, usual: Any, *odd: Any) -> Any:
    return usual if rng.random() < 0.9 else rng.choice(odd)


def own(rng: random.Random) -> Header:
    odd = [
        "trace",
        "delay-due-at",
        "delay-settles",
        "UNIQ_KEY",
        "a\0b",
        "\N{REPLACEMENT CHARACTER}",
    ]
    return str(mostly(rng, "trace", "", *odd)), content(rng)


def spoil(rng: random.Random, headers: list[Header]) -> None:
    """Add, repeat, empty or drop a header that means something."""
    special = rng.choice(sorted(KNOWN | HOME_NAMES))
    chosen = rng.randrange(len(headers))
    name = headers[chosen][0]
    value = rng.choice([b"other", b"none", b"-1", b"x", *TABLE.get(name, {})])
    edits: list[Callable[[], object]] = [
        lambda: headers.append((special, content(rng))),
        lambda: headers.append(headers[chosen]),
        lambda: headers.__setitem__(chosen, (name, None)),
        lambda: headers.pop(chosen),
        lambda: headers.__setitem__(chosen, (name, value)),
        lambda: headers.__setitem__(chosen, (name, value)),
    ]
    rng.choice(edits)()


def content(rng: random.Random) -> bytes | None:
    return rng.choice([None, b"", b"v", b"keep this", rng.randbytes(rng.randrange(40))])


def output(rng: random.Random, offset: int, topics: Sequence[str]) -> Row:
    """A record of the service in one of the small histories, perhaps spoilt."""
    topic = rng.choice(topics)
    at, _, value, found = rng.choice(WRITTEN[topic])
    headers = [*found]
    if rng.random() < 0.2:
        headers = rng.choice([[], rng.sample(headers, rng.randrange(len(headers)))])
    for _ in range(mostly(rng, 0, 1, 2)):
        headers.insert(rng.choice([0, len(headers)]), own(rng))
    if headers and rng.random() < 0.2:
        spoil(rng, headers)
    kept = None if rng.random() < 0.02 else headers
    return (topic, 0, offset, at, rng.choice([None, b"", b"k"]), mostly(rng, value, None), kept)


WRITTEN: Final = {
    topic: [record for one in CASES.values() for record in made(one).logs[topic] if record[3]]
    for topic in (LETTERS, OUTCOMES, TARGET, OTHER)
}


# --- both readers --------------------------------------------------------------------------------


def batches(rows: list[Row]) -> Iterable[pa.RecordBatch]:
    yield batch_of(rows, arrow_schema(ROW_SCHEMA))


def count_readings(classified: DataFrame) -> dict[int, int]:
    return {row[0]: row[1] for row in classified.groupBy("reading").count().collect()}


def read(made: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return sorted(
        (tuple(row[name] for name in COLUMNS) for batch in made for row in batch.to_pylist()),
        key=repr,
    )


def rows_of(ledger: DataFrame) -> list[tuple[Any, ...]]:
    rows = [tuple(bytes(v) if isinstance(v, bytearray) else v for v in r) for r in ledger.collect()]
    return sorted(rows, key=repr)


def assert_same(made: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> None:
    """Compare so that a failure shows one row, and not a diff of thousands."""
    assert len(made) == len(wanted)
    for one, other in zip(made, wanted, strict=True):
        assert one == other


def settling(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows of records that are judged: native and Python count the others apart."""
    return sorted((row for row in rows if row[0] != -1 or row[1] > 1), key=repr)


@pytest.fixture(autouse=True)
def _cleared(spark: SparkSession) -> Iterable[None]:
    yield
    spark.catalog.clearCache()


def test_a_record_whose_bytes_were_altered_on_a_brokers_disk_is_never_read(
    spark: SparkSession, cluster: EmbeddedCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic("altered")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, b"as it was written")
    assert producer.flush(60) == 0
    (segment,) = cluster.folder.glob(f"**/{topic}-0/*.log")
    segment.write_bytes(segment.read_bytes().replace(b"as it was", b"as it has"))
    client = {"bootstrap.servers": cluster.bootstrap, "java.check.crcs": "false"}
    try:
        with pytest.raises(FAILURES) as raised:
            read_topic(spark, client, {(topic, 0): Span(0, 1)}, 1).collect()
    finally:  # other tests on this cluster read all topics
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.delete_topics([topic])[topic].result(60)
    assert f"batch for partition {topic}-0 at offset 0 is invalid" in reason(raised.value)
