"""Events of slices in the logs of nodes, as the demo and the bench read them."""

from __future__ import annotations

from delay_devtools.nodes import slice_events_of

AT = "2026-01-01T00:00:00+00:00"
WHY = "fenced at commit_transaction: another node has taken over a slice"


def line(message: str, worker: int, **facts: object) -> dict[str, object]:
    return {"timestamp": AT, "message": message, "worker": worker, **facts}


def test_a_lost_writer_loses_every_slice_that_its_worker_holds() -> None:
    held: dict[int, set[int]] = {}
    for number in (0, 2, 4):
        slice_events_of("n1", line("took_over", 0, slice=number, epoch=1), held)
    slice_events_of("n1", line("took_over", 1, slice=1, epoch=1), held)
    slice_events_of("n1", line("handed_over", 0, slice=2, epoch=1), held)
    lost = slice_events_of("n1", line("ownership_lost", 0, writer="w", why=WHY), held)
    assert [(one.slice_no, one.what, one.why) for one in lost] == [
        (0, "ownership_lost", WHY),
        (4, "ownership_lost", WHY),
    ]
    assert slice_events_of("n1", line("ownership_lost", 0, writer="w", why=WHY), held) == []
    assert held == {0: set(), 1: {1}}
