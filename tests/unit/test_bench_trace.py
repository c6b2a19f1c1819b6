"""The failover bench's trace: who delivered first, and how long nobody did."""

from __future__ import annotations

from delay_devtools.bench.tally import DeliveryPause, SliceDelivery, Trace, Tracer


def trace(*deliveries: tuple[int, int]) -> Trace:
    return Trace({3: [SliceDelivery(*one) for one in deliveries]})


def test_records_of_one_slice_and_millisecond_are_one_delivery_seen_first() -> None:
    tracer = Tracer()
    tracer.add([(3, 20), (1, 20), (3, 10)], 25)
    tracer.add([(3, 20), (3, 21)], 26)
    assert tracer.trace().slices == {
        3: [SliceDelivery(10, 25), SliceDelivery(20, 25), SliceDelivery(21, 26)],
        1: [SliceDelivery(20, 25)],
    }


def test_what_a_dead_owner_had_produced_is_no_delivery_of_its_successor() -> None:
    found = trace((100, 190), (150, 300), (200, 310), (210, 305))
    assert found.first_after(3, 150.9) == SliceDelivery(210, 305)
    assert found.first_after(3, 210) is None
    assert found.first_after(4, 0) is None


def test_a_pause_is_between_the_last_before_and_the_first_after() -> None:
    found = trace((100, 110), (150, 170), (230, 260), (231, 250))
    assert found.pause_at(3, 150.2) == DeliveryPause(produced_ms=80, seen_ms=80)
    assert found.pause_at(3, 99) is None
    assert found.pause_at(3, 231) is None
    assert found.pause_at(0, 150) is None


def test_records_that_cross_on_their_way_leave_no_pause_to_see() -> None:
    assert trace((100, 400), (200, 390)).pause_at(3, 100) == DeliveryPause(
        produced_ms=100, seen_ms=0
    )
