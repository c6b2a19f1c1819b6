"""What any producer, or an operator's mistake, may do to a target costs no transaction: counts and
aborts, never times. For the topics of the service's own see
``test_own_topics``.
"""

from __future__ import annotations

from tests.integration.bench import Bench, aborts, await_true, benches

SMALL_BYTES = 1_000
PARTITIONS = 2


SETS = ("delivery.park_delays_ms=300,300", "node.workers=1")
bench = benches(partitions=PARTITIONS, sets=SETS)


def test_a_target_that_takes_small_batches_gets_all_it_takes_and_aborts_nothing(
    bench: Bench,
) -> None:
    service = bench.serve()
    sound = bench.target("sound")
    small = bench.target("small", max_message_bytes=str(SMALL_BYTES))
    for number in range(60):
        value = b"x" * (SMALL_BYTES if number % 10 == 0 else 300)
        place = number % PARTITIONS
        bench.send_later(bench.to(small, 500), key=b"%d" % number, value=value, partition=place)
        bench.send_later(bench.to(sound, 500), key=b"%d" % number, partition=place)
    bench.producer.flush()
    bench.read(sound, 60)
    taken = bench.read(small, 54)
    letters = bench.read(bench.dead_letter, 6)
    assert len({one.key for one in taken}) == len(taken) == 54
    assert {one.header("delay-error") for one in letters} == {"too-large"}
    assert {int(one.key or b"") % 10 for one in letters} == {0}
    assert aborts(service) == []


def test_a_record_fits_exactly_or_is_a_dead_letter(bench: Bench) -> None:
    service = bench.serve()
    probe = bench.target("probe", max_message_bytes=str(SMALL_BYTES))
    for size in range(600, 960):  # its provenance takes the rest, so that some fit and some do not
        bench.send_later(bench.to(probe, 300), key=b"%d" % size, value=b"x" * size)
    bench.producer.flush()
    taken: set[int] = set()
    refused: set[int] = set()

    def is_all() -> bool:
        taken.update(int(one.key or b"") for one in bench.read_all(probe))
        refused.update(int(one.key or b"") for one in bench.read_all(bench.dead_letter))
        return len(taken) + len(refused) == 360

    await_true(is_all, "each is taken or refused", 60)
    assert not taken & refused
    assert taken
    assert refused
    assert aborts(service) == [], "the broker agrees with what was judged before"


def test_a_compacted_target_refuses_records_without_a_key_and_nothing_else(bench: Bench) -> None:
    service = bench.serve()
    compacted = bench.target("compacted", cleanup_policy="compact")
    for number in range(50):
        key = b"%d" % number if number % 2 else None
        bench.send_later(bench.to(compacted, 300), key=key, value=b"%d" % number)
    bench.producer.flush()
    taken = bench.read(compacted, 25)
    letters = bench.read(bench.dead_letter, 25)
    assert all(int(one.value or b"") % 2 for one in taken)
    assert {one.header("delay-error") for one in letters} == {"target-refused"}
    assert aborts(service) == []


def test_many_new_targets_that_do_not_exist_abort_nothing_and_hold_up_no_record(
    bench: Bench,
) -> None:
    service = bench.serve()
    sound = bench.target("sound")
    for number in range(400):
        missing = bench.target_name(f"never_{number}")
        bench.send_later(bench.to(missing, 0), key=b"bad", partition=number % PARTITIONS)
        bench.send_later(bench.to(sound, 0), key=b"%d" % number, partition=number % PARTITIONS)
    bench.producer.flush()
    assert len({one.key for one in bench.read(sound, 400)}) == 400
    letters = bench.read(bench.dead_letter, 400)
    assert {one.header("delay-error") for one in letters} == {"target-unknown"}
    assert len({one.header("delay-source") for one in letters}) == 400
    assert aborts(service) == []
    assert len(service.events("took_over")) == PARTITIONS
