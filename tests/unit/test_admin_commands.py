"""Commands that ask a running node, and what they print."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from rich.console import Console

from connectors.kafka import clients
from connectors.kafka.controls import CONFIRM_S, ControlClient
from delay_devtools.shown import show_lateness, show_numbers
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.commands import console
from delayservice.commands.api import connect
from delayservice.config.settings import Settings, load
from delayservice.contract.entry import NewRecord

MADE = "the token that the node has made"
HOSTILE = "a\x1b]0;owned\x07\x9b31m\N{RIGHT-TO-LEFT OVERRIDE}\N{RIGHT-TO-LEFT ISOLATE}\r\nb [bold]"


def settings_in(folder: Path, *sets: str) -> Settings:
    return load(None, [f"node.state_dir={folder}", *sets], {})


def sent(settings: Settings, address: str | None, token_file: Path | None = None) -> str | None:
    api = connect(settings, address, token_file)
    assert bool(api.no_token) == ("Authorization" not in api.client.headers)
    bearer = api.client.headers.get("Authorization")
    return None if bearer is None else bearer.removeprefix("Bearer ")


@pytest.mark.parametrize(
    ("address", "is_sent"),
    [
        (None, True),
        ("127.0.0.1:9465", True),
        ("127.8.8.8:9465", True),
        ("[::1]:9465", True),
        ("localhost:9465", True),
        ("0.0.0.0:9465", True),
        ("[::]:9465", True),
        ("node-2:9465", False),
        ("10.0.0.2:9465", False),
        ("127.evil.example:9465", False),
        ("localhost.evil.example:9465", False),
        ("localhost:x@evil.example:9465", False),
    ],
)
def test_a_made_token_is_sent_to_loopback_only(
    tmp_path: Path, *, address: str | None, is_sent: bool
) -> None:
    (tmp_path / "admin_token").write_text(MADE + "\n")
    assert sent(settings_in(tmp_path), address) == (MADE if is_sent else None)


def test_a_token_that_is_named_or_configured_is_sent_anywhere(tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.write_text("another token, by name\n")
    configured = settings_in(tmp_path, "admin.token=a configured token")
    assert sent(configured, "node-2:9465") == "a configured token"
    assert sent(configured, "node-2:9465", named) == "another token, by name"


def test_a_made_token_that_cannot_be_read_keeps_nobody_from_reading(tmp_path: Path) -> None:
    (tmp_path / "admin_token").mkdir()  # root reads every file, but no folder
    api = connect(settings_in(tmp_path), None, None)
    assert "Authorization" not in api.client.headers
    assert "can't be read" in api.no_token


@pytest.mark.parametrize("content", [None, b"", b"\xff\xff", b"a\nb", "t\u00f6ken".encode()])
def test_a_token_file_that_was_named_has_to_hold_one(tmp_path: Path, content: bytes | None) -> None:
    named = tmp_path / "named"
    if content is not None:
        named.write_bytes(content)
    with pytest.raises(DelayServiceError, match=r"named (can't be read|holds no token)|in .*named"):
        connect(settings_in(tmp_path), None, named)


def test_an_address_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DelayServiceError, match="no HOST:PORT"):
        connect(settings_in(tmp_path), "node:port", None)


def test_a_length_of_time_is_told_in_the_largest_unit_that_fits_twice() -> None:
    told = [console.span(ms) for ms in (0, 1_999, 2_000, 119_999, 5_400_000, 2_591_905_000)]
    assert told == ["0 ms", "1,999 ms", "2 seconds", "120 seconds", "90 minutes", "30 days"]


def test_json_holds_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"detail": HOSTILE + "\u00e4"})
    line = capsys.readouterr().out.removesuffix("\n")
    assert line.isprintable()
    assert "\u00e4" in line
    assert json.loads(line) == {"detail": HOSTILE + "\u00e4"}


# --- what is told of a control that was not written, after errors that no broker makes on demand --


REFUSED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT, "timed out")
UNCONFIRMED = f"not confirmed within {CONFIRM_S:g} s; it may be"


class Producer:
    """Reports one fate of all that it is given, or nothing."""

    def __init__(self, fate: KafkaError | None) -> None:
        self._fate = fate
        self._note: Callable[[KafkaError, None], None] | None = None

    def produce(self, *, on_delivery: Any, **_: object) -> None:
        self._note = on_delivery

    def poll(self, _: float) -> None: ...

    def flush(self, _: float) -> int:
        if self._note is None or self._fate is None:
            return 1
        self._note(self._fate, None)
        return 0


@pytest.mark.parametrize(
    ("fate", "text"),
    [(REFUSED, "can't be written: too large"), (TIMED_OUT, UNCONFIRMED), (None, UNCONFIRMED)],
)
def test_a_control_is_refused_or_may_be_written(
    monkeypatch: pytest.MonkeyPatch, fate: KafkaError | None, text: str
) -> None:
    made: list[dict[str, Any]] = []

    def make(options: dict[str, Any]) -> Producer:
        made.append(options)
        return Producer(fate)

    monkeypatch.setattr(clients, "producer_client", make)
    desk = ControlClient({"message.timeout.ms": "300000"}, {}, cast("Any", None), "o")
    with pytest.raises(KafkaEdgeError, match=f"t:1 .*{text}"):
        desk.write([NewRecord("t", 1, b"k", None, [])])
    assert made[0]["message.timeout.ms"] == CONFIRM_S * 1_000, "it gives up when that is told"


# --- what runs show at their end ------------------------------------------------------------------


def console_of() -> Console:
    return Console(file=StringIO(), width=120, force_terminal=True, color_system="standard")


def written(shown: Console) -> str:
    assert isinstance(shown.file, StringIO)
    return shown.file.getvalue()


def test_bars_are_as_long_as_their_counts_and_never_vanish() -> None:
    shown = console_of()
    show_lateness(shown, [("≤ 5 ms", [(100, "green"), (100, "yellow")]), ("later", [(1, "red")])])
    first, last = written(shown).splitlines()[-2:]
    assert first.count("█") == 50
    assert (last.count("█"), "201" in first, "200" in first) == (1, False, True)


def test_a_number_that_has_to_be_zero_is_red_when_it_is_not() -> None:
    shown = console_of()
    show_numbers(shown, "bench", {"sent": 12_000, "lost": 3, "early": 0, "unknown": None})
    text = written(shown)
    assert "12,000" in text
    assert "unknown" not in text
    assert text.count("\x1b[1;31m") == 1
