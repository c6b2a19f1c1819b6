"""What runs show at their end."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from delay_devtools.shown import show_lateness, show_numbers


def console() -> Console:
    return Console(file=StringIO(), width=120, force_terminal=True, color_system="standard")


def written(shown: Console) -> str:
    assert isinstance(shown.file, StringIO)
    return shown.file.getvalue()


def test_bars_are_as_long_as_their_counts_and_never_vanish() -> None:
    shown = console()
    show_lateness(shown, [("≤ 5 ms", [(100, "green"), (100, "yellow")]), ("later", [(1, "red")])])
    first, last = written(shown).splitlines()[-2:]
    assert first.count("█") == 50
    assert (last.count("█"), "201" in first, "200" in first) == (1, False, True)


def test_a_number_that_has_to_be_zero_is_red_when_it_is_not() -> None:
    shown = console()
    show_numbers(shown, "bench", {"sent": 12_000, "lost": 3, "early": 0, "unknown": None})
    text = written(shown)
    assert "12,000" in text
    assert "unknown" not in text
    assert text.count("\x1b[1;31m") == 1
