"""Commands that ask a node: which token goes where, and what of others reaches the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from delayservice.base.errors import DelayServiceError
from delayservice.commands import console
from delayservice.commands.api import connect
from delayservice.config.settings import Settings, load

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
def test_the_token_that_a_node_made_is_sent_to_this_machine_only(
    tmp_path: Path, *, address: str | None, is_sent: bool
) -> None:
    (tmp_path / "admin_token").write_text(MADE + "\n")
    assert sent(settings_in(tmp_path), address) == (MADE if is_sent else None)


def test_a_token_that_is_named_or_configured_is_sent_anywhere(tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.write_text("another token, by name\n")
    configured = settings_in(tmp_path, "admin.tokens.sre.token=a configured token")
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


def test_json_means_the_same_and_has_nothing_in_it_that_steers_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.print_json({"detail": HOSTILE + "\u00e4"})
    line = capsys.readouterr().out.removesuffix("\n")
    assert line.isprintable()
    assert "\u00e4" in line
    assert json.loads(line) == {"detail": HOSTILE + "\u00e4"}
