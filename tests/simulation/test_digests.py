"""Copies that hold the same publish the same, however they came to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from delayservice.replicas.digest import ShardDigest
from tests.simulation.blocks import blocks
from tests.simulation.plan import usual_plan
from tests.simulation.schedule import run_schedule, silenced
from tests.simulation.sim_digests import DigestBook, short_hours

BLOCK = 25


def _run(seeds: range) -> tuple[str | None, int, int]:
    compared = hours = 0
    with silenced(), short_hours():
        for seed in seeds:
            book = DigestBook()
            # A log that expires between two commits leaves no time to be compared in.
            plan = replace(usual_plan(seed), retention=False)
            verdict = run_schedule(seed, plan=plan, book=book)
            if verdict.broken or book.broken:
                return f"seed {seed}: {verdict.broken or book.broken}", compared, hours
            compared += book.compared
            hours += book.hours
    return None, compared, hours


@pytest.mark.parametrize("block", blocks(16))
def test_copies_agree_at_every_cut(block: int) -> None:
    broken, compared, hours = _run(range(block * BLOCK, (block + 1) * BLOCK))
    assert broken is None
    assert compared > BLOCK
    assert hours > BLOCK


def _replaced(name: str, wrong: Any) -> AbstractContextManager[Any]:
    original = getattr(ShardDigest, name)

    def mutant(self: ShardDigest, *args: Any) -> Any:
        return wrong(original, self, *args)

    return patch.object(ShardDigest, name, mutant)


@contextmanager
def marks_do_not_count() -> Iterator[None]:
    """What is cancelled stays in the sums until the disk is read."""
    with _replaced(
        "store", lambda do, it, frames, named, _marks, stop: do(it, frames, named, (), stop)
    ):
        yield


@contextmanager
def counted_before_h() -> Iterator[None]:
    """Records count as soon as they are stored."""

    def store(do: Any, it: ShardDigest, *args: Any) -> None:
        do(it, *args)
        it._count(it.stored)
        it.counted = 0

    with _replaced("store", store):
        yield


@contextmanager
def scanned_twice() -> Iterator[None]:
    """A scan counts what H has not passed, which is counted again when it has."""

    def scanned(do: Any, it: ShardDigest, frames: Any, upto: Any) -> None:
        counted, it.counted = it.counted, 2**62
        do(it, frames, upto)
        it.counted = counted

    with _replaced("scanned", scanned):
        yield


@contextmanager
def made_is_not_kept_up() -> Iterator[None]:
    """What comes while the disk is read is in the old sums only."""

    def count(do: Any, it: ShardDigest, stop: int) -> None:
        making, it._making = it._making, None
        do(it, stop)
        it._making = making

    with _replaced("_count", count):
        yield


@pytest.mark.parametrize(
    "mutation", [marks_do_not_count, counted_before_h, scanned_twice, made_is_not_kept_up]
)
def test_a_mistake_in_the_sums_is_seen(mutation: Any) -> None:
    with mutation():
        broken, _, _ = _run(range(400))
    assert broken is not None
