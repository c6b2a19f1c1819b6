"""Plans of load and judge processes; and passthrough, a reference for the service's rate."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from delay_devtools.bench import wire
from delay_devtools.bench.judge_process import JudgePlan
from delay_devtools.bench.load_process import Due, LoadPlan
from delay_devtools.bench.passthrough_process import PassthroughCost, PassthroughPlan
from delay_devtools.bench.stand import Names, Stand, now_ms
from delay_devtools.bench.tally import Batch, BenchVerdict
from delayservice.contract.provenance import Provenance

PASSED: Final = "passed"
_WARM_UP_RECORDS: Final = 200_000
A_SECOND_MS: Final = 1_000


def load_plan(
    stand: Stand,
    names: Names,
    target: str,
    batch: Batch,
    due: Due,
    *,
    rate_per_s: float = 0.0,
    is_hidden: bool = False,
    is_open: bool = False,
) -> LoadPlan:
    return LoadPlan(
        client=stand.client("producer"),
        topic=names.delay,
        target=names.target(target),
        batch=batch,
        due=due,
        rate_per_s=rate_per_s,
        is_open=is_open,
        is_level=names.level_ms > 0,
        is_full=stand.options.full,
        transactional_id=f"{names.prefix}_load" if is_hidden else "",
    )


def judge_plan(
    stand: Stand,
    names: Names,
    target: str,
    batch: Batch,
    last_due_ms: int,
    *,
    is_open: bool = False,
) -> JudgePlan:
    topic = names.target(target)
    return JudgePlan(stand.client("consumer"), topic, batch, last_due_ms, is_open)


def pass_through(
    stand: Stand, names: Names, batch: Batch, transaction_records: int
) -> tuple[PassthroughCost, BenchVerdict]:
    n = batch.n
    headers = Provenance(names.delay, 0).headers(n, now_ms(), None)
    plan = PassthroughPlan(
        consumer=stand.client("consumer"),
        producer=stand.client("producer"),
        source=names.delay,
        target=names.target(PASSED),
        n=n,
        transaction_records=transaction_records,
        transactional_id=f"{names.prefix}_pass" if stand.options.is_exactly_once else "",
        headers=[(name, (value or b"").decode()) for name, value in headers],
    )
    judging = judge_plan(stand, names, PASSED, batch, now_ms())
    with ExitStack() as stack:
        if stand.options.judge_beside:
            judge = stack.enter_context(stand.helper("judge", judging))
        bar = stand.steps.bar("Passing through", n)
        with stand.helper("passthrough", plan, bar.at) as passing:
            passing.tell(wire.GO)
            passed = passing.result(wire.DONE, PassthroughCost)
        bar.at(n)
        if not stand.options.judge_beside:
            judge = stack.enter_context(stand.helper("judge", judging))
        return passed, judge.result(wire.DONE, BenchVerdict)


def load_and_pass(stand: Stand, n: int) -> tuple[PassthroughCost, BenchVerdict]:
    names = stand.round()
    stand.create(names, (PASSED,))
    batch = stand.batch(n)
    bar = stand.steps.bar("Loading", n)
    due = Due(now_ms() - 2 * A_SECOND_MS, A_SECOND_MS)
    plan = load_plan(stand, names, PASSED, batch, due, is_hidden=True)
    with stand.helper("load", plan, bar.at) as loader:
        loader.work()
        loader.show()
    return pass_through(stand, names, batch, stand.options.transaction_records)


def warm_up(stand: Stand, n: int = _WARM_UP_RECORDS) -> None:
    # A new broker is slow for some seconds.
    if not stand.options.warm_up:
        return
    with stand.steps.doing("Warming the broker up"):
        load_and_pass(stand, min(n, _WARM_UP_RECORDS))
