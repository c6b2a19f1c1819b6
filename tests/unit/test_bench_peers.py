"""The bench ``peers``: what the clients of other brokers read and write, and its run."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from delay_devtools.bench.peers import clients, run, servers
from delay_devtools.bench.peers.clients import frame, read_message
from delay_devtools.bench.tally import BenchVerdict
from delay_devtools.jars import parse_lock

LOCK = Path(servers.__file__).with_name("rocketmq.lock")


def verdict(lateness_ms: dict[int, int], *, duplicated: int = 0) -> BenchVerdict:
    return BenchVerdict(
        n=sum(lateness_ms.values()),
        seen=sum(lateness_ms.values()),
        lost=0,
        duplicated=duplicated,
        early=sum(count for late, count in lateness_ms.items() if late < 0),
        altered=0,
        strangers=0,
        last_seen_s=2.0,
        lateness_ms=lateness_ms,
    )


def results() -> list[run.Result]:
    good = run.Result("this service 1", "a node", "undisturbed", verdict({5: 98, 40: 2}))
    late = verdict({-7: 1, 60: 99}, duplicated=3)
    return [good, run.Result("Other 2", "a broker", "killed", late, resent=4, restart_s=1.5)]


def test_a_frame_says_how_long_its_headers_and_all_of_it_are() -> None:
    assert frame("to", b"body", "answers", {"Key": "k"}) == (
        b"HPUB to answers 20 24\r\nNATS/1.0\r\nKey: k\r\n\r\nbody\r\n"
    )


@pytest.mark.parametrize(
    ("line", "rest", "reply", "headers", "body"),
    [
        (b"MSG a.b 7 4\r\n", b"\r\n\x00x\r\n", "", {}, b"\r\n\x00x"),
        (b"MSG a.b 7 re.ply 1\r\n", b"x\r\n", "re.ply", {}, b"x"),
        (b"HMSG a.b 7 20 21\r\n", b"NATS/1.0\r\nKey: k\r\n\r\nx\r\n", "", {"Key": "k"}, b"x"),
        (b"HMSG a.b 7 re 16 16\r\n", b"NATS/1.0 503\r\n\r\n\r\n", "re", {}, b""),
    ],
)
def test_a_message_is_read_whole_and_nothing_after_it(
    line: bytes, rest: bytes, reply: str, headers: dict[str, str], body: bytes
) -> None:
    file = io.BytesIO(rest + b"PING\r\n")
    found = read_message(line, file)
    assert found == clients.NatsMessage("a.b", 7, reply, headers, body)
    assert file.read() == b"PING\r\n"


def test_another_line_is_no_message() -> None:
    assert read_message(b"PING\r\n", io.BytesIO()) is None
    assert read_message(b"\r\n", io.BytesIO()) is None


def test_an_answer_refuses_when_it_holds_an_error_or_nothing() -> None:
    assert clients.NatsMessage("a", 1, "", {}, b"").is_error
    assert clients.NatsMessage("a", 1, "", {}, b'{"error":{"code":503}}').is_error
    assert not clients.NatsMessage("a", 1, "", {}, b'{"stream":"s","seq":1}').is_error


def test_a_result_counts_what_is_wrong_and_how_late_it_was() -> None:
    good, bad = results()
    assert (good.is_good, bad.is_good) == (True, False)
    late, wrong = run.as_object(good), run.as_object(bad)
    assert [late[f"lateness_ms_{name}"] for name in ("p50", "p99", "max")] == [5, 40, 40]
    assert (wrong["early"], wrong["early_ms_max"], wrong["duplicated"]) == (1, 7, 3)


def test_json_has_all_but_the_histogram() -> None:
    found = run.as_object(results()[1])
    assert "lateness_ms" not in found
    assert (found["system"], found["resent"], found["restart_s"]) == ("Other 2", 4, 1.5)


def test_the_table_has_a_row_for_each_result_and_a_dash_for_what_is_not_counted() -> None:
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(run.table(results()))
    text = console.export_text()
    assert re.search(r"this service 1 +│ undisturbed .*│ +— ", text)
    assert re.search(r"Other 2 +│ killed .*│ +4 │ +60 ", text)


def test_the_share_of_messages_grows_to_all_of_them() -> None:
    assert run.share_by_lateness({40: 1, 5: 3}) == ([5, 40], [75.0, 100.0])


def test_the_plot_is_written_in_the_format_of_its_name(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "lateness.svg"
    run.draw(results(), path)
    assert "<svg" in path.read_text("utf-8")


def test_the_versions_are_those_of_the_locks() -> None:
    pinned = {jar.coordinate for jar in parse_lock(LOCK.read_text("utf-8"))}
    version = servers.rocketmq_version()
    for part in ("broker", "namesrv", "client"):
        assert f"org.apache.rocketmq:rocketmq-{part}:{version}" in pinned
    sums = LOCK.with_name("nats") / "go.sum"
    assert f"nats-server/v2 v{servers.nats_version()} h1:" in sums.read_text("utf-8")
