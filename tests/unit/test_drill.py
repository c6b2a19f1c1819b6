"""The tables of a drill fit its stories and its page, and its verdict is exact."""

from __future__ import annotations

import subprocess
import sys

from delay_devtools.drill.copies import COPY_KINDS
from delay_devtools.drill.judge import Defect, judge
from delay_devtools.drill.operators import DEFECTS, SOUND
from delay_devtools.drill.run import KINDS
from delay_devtools.drill.stories import STORIES
from tests.unit.test_imports import ROOT


def test_a_command_of_another_kind_loads_no_spark() -> None:
    program = (
        "import sys, delay_devtools.commands\n"
        "print([m for m in sys.modules if m.startswith(('connectors.spark', 'pyspark'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_each_kind_spoils_a_story_that_is_played_and_has_a_name_of_its_own() -> None:
    played = {*STORIES, "aged", "tail"}
    assert {kind.story for kind in (*DEFECTS.values(), *SOUND.values())} <= played
    assert len(set(KINDS)) == len(KINDS) >= 60
    assert not {*KINDS} & {*SOUND}


def test_every_operator_is_in_the_tables_of_the_page() -> None:
    page = (ROOT / "docs/internals/drill.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name.strip(" `") for row in rows for name in row.split(",")}
    done = {name.removeprefix(f"{kind.story}_") for name, kind in {**DEFECTS, **SOUND}.items()}
    copies = {name.partition("_")[2] for name in COPY_KINDS}
    assert named == done | copies


def test_a_defect_counts_only_when_all_of_it_is_found_and_the_rest_is_invented() -> None:
    defects = [
        Defect("missing_minute", (("disks", "missing", 1), ("disks", "missing", 2))),
        Defect("plain_dropped", (("archive", "lost", 7), ("follow", "lost", 7))),
    ]
    all_of_it = [finding for one in defects for finding in one.findings]
    good = judge(defects, all_of_it, 10, {"archive": 2.0})
    assert good.is_good
    assert good.to_json()["rows_per_s"] == 5
    half = judge(defects, all_of_it[1:], 10, {})
    assert (half.found["missing_minute"], half.missed) == (0, all_of_it[:1])
    assert not half.is_good
    twice = judge(defects, [*all_of_it, all_of_it[2]], 10, {})
    assert twice.inventions == [all_of_it[2]]
    once = judge(defects[1:], all_of_it[2:3], 10, {})
    assert (once.found["plain_dropped"], once.missed) == (0, all_of_it[3:])
    elsewhere = judge(defects[1:], [("archive", "lost", 8)], 10, {})
    assert (elsewhere.found["plain_dropped"], len(elsewhere.inventions)) == (0, 1)
