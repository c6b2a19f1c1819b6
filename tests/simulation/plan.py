"""What one schedule is about: drawn from its seed, printed with its trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

TOPICS = ("delay_topic_any", "delay_topic_more")
LEVELS_MS = {"delay_topic_1": 40, "delay_topic_2": 300}
"""Level topics, and how long their records wait."""
NO_ROLL_MS = 10**9


@dataclass(frozen=True, slots=True)
class Plan:
    """Bounds and odds of one schedule. Odds are per call of a port or a store."""

    topics: tuple[str, ...] = TOPICS[:1]
    levels: tuple[str, ...] = ()
    """Level topics, beside those."""
    slices: int = 1
    """Partitions of each topic."""
    nodes: int = 2
    store: str = "sim"
    """``sim`` (loses what is not durable), ``memory`` (loses everything), ``wheel`` (files)."""
    actions: int = 80
    records: int = 14
    ids: int = 2
    roll_window_ms: int = NO_ROLL_MS
    other_roll_window_ms: int | None = None
    """Settings of the second node: the contract changes with the owner (rule 2)."""
    poll_records: int = 50
    batch_records: int = 50
    transaction_records: int = 50
    transaction_interval_ms: int = 0
    settles_early: bool = False
    """Records are settled when they are due, not right before the commit that shows them."""
    cursor_interval_ms: int = 0
    batch_bytes: int = 1_000_000
    queue_max: int = 50
    crash: float = 0.0
    other_node: float = 0.0
    """Odds that another node runs in the middle of this one's call."""
    late: float = 0.0
    """Odds that a helper has not begun, or is not heard yet, when it could be."""
    helper: float = 0.0
    """Odds that a helper gets on in the middle of a call, and the loop in the middle of a helper's.
    """
    moves: float = 0.04
    """Share of what happens that is about roles."""
    elected: bool = False
    """Roles come from elections in ZooKeeper; ``moves`` is then about what happens to those."""
    replicas: int = 0
    """Nodes that keep a copy of each slice where owners are elected; 0: all."""
    stands_still: float = 0.0
    """Odds that a process is frozen in the middle of a call where owners are elected."""
    rivals: float = 0.5
    """Odds that a second node is to own a slice from the beginning."""
    give_up: float = 0.0
    """Odds that the coordinator gives a writer up when Kafka gets round to it."""
    rest_ms: int = 0
    """How long a slice that could not be served is left alone."""
    tick: float = 0.0
    append: float = 0.0
    uncertain: float = 0.0
    resent: float = 0.0
    """Odds that the connection to the coordinator fails while a transaction ends, so that the
    client sends its end again."""
    queue_full: float = 0.0
    """Odds that a producer takes a record only after some have been sent."""
    forgets: float = 0.0
    """Odds that the coordinator forgets an id when Kafka gets round to it."""
    abort: float = 0.0
    broken_call: float = 0.0
    """Odds that a call to Kafka fails: the slice that needed it is released."""
    short_ends: float = 0.0
    """Odds that an answer says that a log ends below H; the next answer is right."""
    asked: float = 0.0
    """Odds that the cluster does not say whether targets can be written to."""
    stuck: str = ""
    """What holds one slice up at last, while the others have to drain: ``asked``, ``take-over``."""
    far: float = 0.0
    """Share of records that are due beyond the roll window, about now, or when the last one is."""
    near: float = 0.0
    again: float = 0.2
    recurring: float = 0.0
    """Share of schedules that recur."""
    periods: float = 0.0
    """Share of those that have a period: it is a second at least, so time has to leap."""
    foreign: bool = False
    """Users open transactions on the delay topic, which pin its last stable offset."""
    foreign_ends: float = 1.0
    """How soon they end: odds, whenever Kafka gets round to it."""
    lazy_markers: bool = False
    """Transaction markers are written some time after the commit was decided."""
    rate_per_s: float = 0.0
    """What a target may get; 0: there is no limit."""
    clock_back: bool = False
    clock_wrong: bool = False
    """Clocks are off by more than a node may put up with, from its start or all of a sudden."""
    load: bool = False
    """Users write on when all is well again, and every record has to be in time."""
    intruder: float = 0.0
    """Odds that something else writes to the service's own topics when Kafka gets round to it."""
    at_least_once: bool = False
    """Targets get their records outside of transactions, and perhaps again."""
    truncates: bool = False
    """Leaders are elected that lack the end of a log."""
    recreates: bool = False
    """Delay topics are deleted, and made anew under their names."""
    retention: bool = False
    outage: bool = False
    """No slice has an owner, and retention deletes some of what nobody has walked by then."""
    stays_up: bool = False
    """Nodes go on as replicas in the outage, else they are down."""
    targets_fail: bool = False
    own_topics_fail: bool = False
    """The dead-letter and the outcomes topic are deleted, forbidden or not served for a while."""
    pauses: bool = False
    """Targets and delay topics are paused and resumed."""
    slots_fail: bool = False
    lanes_change: bool = False
    absent: float = 0.0
    """Share of schedules with an id that are dropped if a record of that id is pending."""
    denied: float = 0.0
    """Share of records with a target that no node allows, and odds that a node is started with
    settings that do not allow ``FICKLE`` either."""
    homes: int = 0
    """In how many partitions ids are at home; 0: they stay where they are written."""
    homes_late: bool = False
    """Ids find home only after a third of the schedule, when nodes are started anew."""
    old_versions: bool = False
    """Nodes know no homes before they are started anew: the next contract version adds them."""
    partitions: int = 0
    """Of each delay topic at first, if some are added later."""
    counted: bool = False
    """Settings don't say in how many partitions ids are at home: in those that there are at first.
    """
    other_homes: float = 0.0
    """Odds that a node is started with another number of them, which must not count any more."""
    away: float = 0.0
    """How often a delay topic's partition can't be written to any more, or can again."""
    large: bool = False
    """Delay topics take small records only, and users write some that hardly fit."""
    forges: bool = False
    """Users write what looks as if it came from the service."""
    wrong_secret: float = 0.0
    """Odds that a node is started with a secret that the others don't have."""


THEMES: tuple[dict[str, Any], ...] = (
    {},
    {},
    # Cancels that meet rolls: one id, copies that come back from the log bit by bit.
    {"roll_window_ms": 60, "ids": 1, "records": 16, "actions": 100, "append": 0.1, "far": 0.6},
    {"roll_window_ms": 60, "ids": 1, "records": 16, "poll_records": 1, "append": 0.2, "far": 0.6},
    # Much is staged for long before it is committed, or lost.
    {"transaction_records": 50, "transaction_interval_ms": 200, "abort": 0.3, "near": 0.7},
    # Turns at a target whose limit is far below what falls due.
    {"rate_per_s": 20.0, "records": 24, "near": 0.9, "abort": 0.1, "tick": 0.05},
    {"rate_per_s": 20.0, "records": 24, "ids": 1, "roll_window_ms": 150, "append": 0.1},
    # The clock steps back while records of the same due time still come.
    {"clock_back": True, "records": 16, "again": 0.5, "near": 0.9, "tick": 0.05, "append": 0.1},
    # A user's transaction hides a copy until K has passed it.
    {"foreign": True, "foreign_ends": 0.05, "roll_window_ms": 60, "ids": 1, "records": 24}
    | {"append": 0.15, "far": 0.5, "near": 0.5, "again": 0.0, "tick": 0.1},
    # What is paused meets cancels, fires, expiry and rolls.
    {"pauses": True, "ids": 2, "roll_window_ms": 150, "records": 24, "append": 0.1, "tick": 0.05},
    # Schedules that recur, met by cancels and fires; the last with the shortest period there is.
    {"recurring": 0.5, "ids": 1, "again": 0.0},
    {"recurring": 0.6, "roll_window_ms": 60, "ids": 1, "poll_records": 1, "append": 0.15},
    {"recurring": 0.7, "periods": 0.8, "ids": 2, "records": 8, "roll_window_ms": 700},
    # Slices that change hands all the time, in the middle of everything.
    {"slices": 3, "nodes": 3, "moves": 0.3, "late": 0.5, "helper": 0.1, "other_node": 0.05},
    {"slices": 2, "nodes": 3, "moves": 0.4, "late": 0.3, "uncertain": 0.1, "near": 0.9},
    # Something else writes checkpoints, deletes some, and nodes come new to what is left.
    {"intruder": 0.5, "crash": 0.02, "moves": 0.2, "records": 16, "slices": 2},
    # Records of one fixed delay, which the log itself keeps in order.
    {"levels": tuple(LEVELS_MS), "records": 30, "foreign": True, "abort": 0.1, "crash": 0.02},
    {"levels": tuple(LEVELS_MS), "records": 30, "targets_fail": True, "pauses": True},
    # Nobody knows the targets.
    {"asked": 0.4, "records": 24, "near": 0.8, "batch_records": 3},
)
"""What some plans are bent towards: protocols break where two rare things meet."""
TRUNCATED: dict[str, Any] = {
    "truncates": True,
    "records": 16,
    "append": 0.1,
    "near": 0.4,
    "levels": (),
} | {"retention": False, "slots_fail": False, "lanes_change": False}
"""Logs lose their end, and with it what was written there."""
TRUNCATED_LEVELS = TRUNCATED | {"levels": tuple(LEVELS_MS), "records": 24}
RECREATED: dict[str, Any] = (
    {"recreates": True, "records": 16, "append": 0.05, "levels": (), "stuck": "", "load": False}
    | {"roll_window_ms": NO_ROLL_MS, "other_roll_window_ms": None, "far": 0.0, "recurring": 0.0}
    | {"rate_per_s": 0.0, "targets_fail": False, "pauses": False, "asked": 0.0, "abort": 0.0}
    | {"retention": False, "slots_fail": False, "lanes_change": False}
)
"""Delay topics are created again. No copies: an owner that has not seen it yet writes those of the
old topic into the new one.
"""
AT_LEAST_ONCE: dict[str, Any] = {"at_least_once": True, "recurring": 0.0}
"""Targets get their records outside of transactions, and perhaps again."""
KINDS: tuple[dict[str, Any], ...] = (TRUNCATED, TRUNCATED_LEVELS, RECREATED, AT_LEAST_ONCE)
KINDS_PER_SEED = 16
"""One of so many seeds draws a plan of each of these kinds."""
SEEDS = 1_000_000
"""Ranges of seeds that draw a kind recur after so many, as fresh seeds are drawn beyond them."""


OUTAGE: dict[str, Any] = {
    "outage": True,
    "retention": False,
    "slots_fail": False,
    "lanes_change": False,
    "stuck": "",
    "other_roll_window_ms": None,  # a copy that hears late of another contract is rebuilt
} | {"wrong_secret": 0.0, "intruder": 0.0, "records": 24, "ids": 3, "append": 0.1}
SEEDS_OF_OUTAGE = range(81_000, 82_000)


SETTINGS_DIFFER: dict[str, Any] = (
    {"roll_window_ms": 60, "other_roll_window_ms": 200, "far": 0.8}
    | {"again": 0.0, "ids": 4, "records": 30, "actions": 200, "crash": 0.03, "other_node": 0.05}
    | {"append": 0.05, "queue_max": 50, "foreign": False, "retention": False}
)
"""Nodes of different settings hand the slices to and fro, restart, and store meanwhile: not all
that a replica holds was read by the contracts that it hears of next.
"""


SEEDS_OF_HOMES = range(100_000, 120_000)
HOMES: dict[str, Any] = {"homes": 2, "slices": 2, "records": 24, "actions": 120, "append": 0.05} | {
    "retention": False,
    "targets_fail": False,
}
"""Ids find home. Where logs lose records as well, see docs/internals/simulation.md."""
HOMES_AWAY = (
    HOMES
    | {"away": 0.08, "tick": 0.05, "records": 40, "actions": 200, "append": 0.01}
    | {
        "moves": 0.02,
        "uncertain": 0.0,
    }
)
"""They can't be written to for a while."""
HOMES_LATE = HOMES_AWAY | {"homes_late": True}
HOMES_OLD = HOMES_LATE | {"old_versions": True, "intruder": 0.0}
HOMES_ADDED = HOMES_AWAY | {"slices": 3, "partitions": 2, "other_homes": 0.5}
HOMES_LARGE = HOMES_AWAY | {"large": True, "recurring": 0.0, "far": 0.0, "away": 0.12}
HOMES_RECURRING = HOMES_AWAY | {"recurring": 0.6, "again": 0.0}
HOMES_FORGED = HOMES | {"forges": True, "slices": 3, "away": 0.03}
KINDS_OF_HOMES: tuple[dict[str, Any], ...] = (
    HOMES,
    HOMES_AWAY,
    HOMES_AWAY,
    HOMES_LATE,
    HOMES_OLD,
    HOMES_ADDED,
    HOMES_LARGE,
    HOMES_RECURRING,
    HOMES_FORGED,
)


SEEDS_OF_ELECTIONS = range(300_000, 400_000)
ELECTED: dict[str, Any] = {"elected": True, "stuck": "", "load": False, "outage": False} | {
    "lanes_change": False,
    "recreates": False,
    "homes": 0,
    "append": 0.05,
}
"""Owners are elected, in fair weather and foul."""
KINDS_OF_ELECTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"moves": 0.3, "actions": 200},
    {"resent": 0.1, "near": 0.8, "actions": 200},
    {"near": 0.9, "records": 24, "transaction_interval_ms": 30, "lazy_markers": True},
    {"own_topics_fail": True, "targets_fail": True},
    TRUNCATED,
)
"""What they are bent towards."""


def with_elections(seed: int, plan: Plan) -> Plan:
    rng = Random(f"election {seed}")
    drawn: dict[str, Any] = {"nodes": rng.choice((2, 3)), "moves": rng.choice((0.05, 0.1, 0.2))}
    drawn |= {"stands_still": rng.choice((0.0, 0.005, 0.02)), "actions": rng.choice((60, 120))}
    if drawn["nodes"] == 3 and rng.random() < 0.3:
        drawn["replicas"] = 2
    return replace(plan, **drawn | rng.choice(KINDS_OF_ELECTIONS) | ELECTED)


def with_homes(seed: int, plan: Plan, kind: dict[str, Any]) -> Plan:
    """A plan where ids find home. Without what keeps one slice back at last by a target: records of
    others are sent there, and wait with it; as does the cancel of a schedule that recurs, by a
    take-over.
    """
    rng = Random(f"homes {seed}")
    recurs = kind.get("recurring", plan.recurring)
    stuck = "" if plan.stuck == "asked" or recurs else plan.stuck
    are_added = "partitions" in kind
    homes = 3 if are_added and rng.random() < 0.3 else 2
    window_ms = rng.choice((NO_ROLL_MS, NO_ROLL_MS, 60, 150))
    drawn: dict[str, Any] = {"stuck": stuck, "homes": homes, "ids": rng.choice((1, 1, 2, 4))}
    drawn |= {"roll_window_ms": window_ms, "far": 0.0 if window_ms == NO_ROLL_MS else plan.far}
    if are_added and homes == kind["partitions"]:
        drawn["counted"] = Random(f"counted {seed}").random() < 0.5
        if drawn["counted"]:  # the slice of partition 0 tells the others how many there are
            drawn["stuck"] = ""
    if plan.load:  # each try to go home is one more record to read: one a poll would not keep up
        drawn["poll_records"] = max(plan.poll_records, 5)
    return replace(plan, **kind | drawn)


def draw_plan(seed: int) -> Plan:
    """The plan of a seed, of one of ``KINDS`` or of none of them."""
    plan, kind = usual_plan(seed), Random(f"loss {seed}").randrange(KINDS_PER_SEED)
    ranges = (SEEDS_OF_OUTAGE, SEEDS_OF_HOMES, SEEDS_OF_ELECTIONS)
    is_free = not any(seed % SEEDS in seeds for seeds in ranges)
    plan = replace(plan, **KINDS[kind]) if is_free and kind < len(KINDS) else plan
    has_disks = plan.store != "memory"
    stays_up = plan.outage and has_disks and Random(f"stays up {seed}").random() < 0.5
    absent = Random(f"absent {seed}").choice((0.0, 0.0, 0.3, 0.7))
    return replace(plan, stays_up=stays_up, absent=absent)


def usual_plan(seed: int) -> Plan:
    """A plan of none of ``KINDS``. Every kind of trouble comes alone, in company, and not at
    all.
    """
    rng = Random(f"plan {seed}")
    wrong_secret = Random(f"secret {seed}").choice((0.0,) * 9 + (0.4,))
    denied = Random(f"denied {seed}").choice((0.0,) * 3 + (0.3,))
    short_ends = Random(f"short ends {seed}").choice((0.0,) * 7 + (0.3,))
    drawn = {"wrong_secret": wrong_secret, "denied": denied, "short_ends": short_ends}
    plan = replace(_draw(rng), **drawn | rng.choice(THEMES))
    if seed % SEEDS in SEEDS_OF_OUTAGE:
        return replace(plan, **OUTAGE)
    if seed % SEEDS in SEEDS_OF_HOMES:
        return with_homes(seed, plan, Random(f"kind {seed}").choice(KINDS_OF_HOMES))
    if seed % SEEDS in SEEDS_OF_ELECTIONS:
        return with_elections(seed, plan)
    return plan


def _draw(rng: Random) -> Plan:
    rare, often = 0.02, 0.12

    def odds(none: float = 0.3) -> float:
        return 0.0 if rng.random() < none else rng.choice((rare, 0.05, often))

    def now_and_then(share: float) -> bool:
        return rng.random() < share

    window_ms = rng.choice((NO_ROLL_MS, NO_ROLL_MS, 60, 60, 150, 400))
    changes = now_and_then(0.08)
    small = now_and_then(0.5)
    lanes_change = now_and_then(0.1)
    return Plan(
        topics=TOPICS if lanes_change or now_and_then(0.1) else TOPICS[:1],
        levels=rng.choice(((), (), (), tuple(LEVELS_MS)[:1])),
        slices=rng.choice((1, 1, 2, 2, 3)),
        nodes=rng.choice((2, 2, 3)),
        late=rng.choice((0.0, 0.2, 0.5)),
        helper=rng.choice((0.0, 0.03, 0.1)),
        moves=rng.choice((0.04, 0.04, 0.15)),
        give_up=rng.choice((0.0, 0.0, 0.1)),
        rest_ms=rng.choice((0, 0, 5, 50)),
        asked=rng.choice((0.0, 0.0, 0.0, 0.1)),
        stuck=rng.choice(("", "", "asked", "take-over")),
        store="memory" if now_and_then(0.06) else "sim",
        actions=rng.choice((30, 60, 100)),
        records=rng.choice((3, 6, 10, 16)),
        ids=rng.choice((1, 1, 1, 2, 4)),
        roll_window_ms=window_ms,
        other_roll_window_ms=rng.choice((200, 700)) if changes else None,
        poll_records=rng.choice((1, 2, 3)) if small else 50,
        batch_records=rng.choice((1, 2, 3)) if small else 50,
        transaction_records=rng.choice((1, 3, 50)),
        transaction_interval_ms=rng.choice((0, 0, 5, 30, 200)),
        settles_early=now_and_then(0.3),
        cursor_interval_ms=rng.choice((0, 0, 10, 60)),
        batch_bytes=rng.choice((1, 200, 1_000_000)),
        queue_max=rng.choice((2, 4, 50)),
        crash=odds(),
        other_node=odds(),
        tick=odds(0.2),
        append=odds(0.2),
        uncertain=rng.choice((0.0, 0.1, 0.4)),
        abort=rng.choice((0.0, 0.0, 0.15)),
        resent=rng.choice((0.0, 0.0, 0.05)),
        queue_full=rng.choice((0.0, 0.0, 0.1)),
        forgets=rng.choice((0.0, 0.0, 0.05)),
        intruder=rng.choice((0.0, 0.0, 0.0, 0.2)),
        broken_call=rng.choice((0.0, 0.0, 0.03)),
        recurring=0.15 if now_and_then(0.4) else 0.0,
        foreign=now_and_then(0.3),
        lazy_markers=now_and_then(0.4),
        clock_back=now_and_then(0.3),
        clock_wrong=now_and_then(0.15),
        load=now_and_then(0.3),
        retention=now_and_then(0.1),
        targets_fail=now_and_then(0.15),
        pauses=now_and_then(0.15),
        slots_fail=now_and_then(0.15),
        lanes_change=lanes_change,
    )
