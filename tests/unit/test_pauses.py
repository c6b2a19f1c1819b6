"""Pauses: what they match, how they are written, and what happens while nobody can hear of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kafka import control_topics, log_ends
from connectors.kafka.control_topics import ControlReader, PauseWatcher
from delayservice.engine.pauses import (
    KINDS,
    Pause,
    Paused,
    Pauses,
    decode_key,
    decode_pause,
    encode_key,
    encode_pause,
)
from tests.integration.bench import await_true

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}


@given(st.sampled_from(KINDS), st.from_regex(r"[A-Za-z0-9._*?-]{1,40}", fullmatch=True))
def test_a_key_reads_back(kind: str, name: str) -> None:
    paused = Paused(kind, name)  # type: ignore[arg-type]  # Hypothesis knows no literals
    assert decode_key(encode_key(paused)) == paused


@given(st.none() | st.binary(max_size=40))
def test_any_key_and_any_value_are_read(data: bytes | None) -> None:
    found = decode_key(data)
    assert found is None or encode_key(found).decode() == (data or b"").decode("utf-8", "replace")
    assert isinstance(decode_pause(data or b""), Pause)


def test_a_value_reads_back() -> None:
    assert decode_pause(encode_pause(Pause(5, "why"))) == Pause(5, "why")


def test_a_target_is_matched_by_its_pattern_and_a_delay_topic_by_its_name() -> None:
    known = Pauses(
        {
            Paused("target", "orders*"): Pause(1, "move"),
            Paused("topic", "delay_topic_any"): Pause(2),
        }
    )
    assert known.why("orders-eu") == "deliveries to orders* are paused: move"
    assert known.why("mails") is None
    assert known.why("delay_topic_any") is None
    assert known.holds("delay_topic_any")
    assert not known.holds("orders-eu")


def test_until_they_are_heard_of_everything_is_held_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_ends, "ASK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(control_topics, "_RETRY_S", 0.02)
    monkeypatch.setattr(control_topics, "_COMPLAIN_S", 0.1)
    monkeypatch.setattr(control_topics, "_WAIT_AT_START_S", 1.0)
    news = PauseWatcher("delay_pauses")
    ControlReader([news], NOBODY, "test")
    assert news.holds("delay_topic_any")
    await_true(lambda: news.problem, "a problem is told")
    assert news.holds("delay_topic_any")
    assert "delay_pauses can't be read" in news.problem
    await_true(lambda: not news.holds("delay_topic_any"), "it holds no longer")
    assert news.problem
