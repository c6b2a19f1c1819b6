"""A name that machines read changes on purpose only, with a row in the changelog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.names import collect

NAMES: Final = collect()
KEPT: Final[dict[str, list[str]]] = json.loads(
    Path(__file__).with_name("names.json").read_text("utf-8")
)


def test_the_same_kinds_of_names_are_kept() -> None:
    assert list(NAMES) == list(KEPT)


@pytest.mark.parametrize("kind", KEPT)
def test_no_name_goes_or_comes_unnoticed(kind: str) -> None:
    gone = sorted(set(KEPT[kind]) - set(NAMES[kind]))
    new = sorted(set(NAMES[kind]) - set(KEPT[kind]))
    assert (gone, new) == ([], []), (
        "a renamed or removed name needs a row in CHANGELOG.md, and the old one works for a "
        "version; then: python -m tests.names > tests/unit/names.json"
    )
