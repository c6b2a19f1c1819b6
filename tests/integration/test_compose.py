"""``docker-compose.yml`` as processes: its settings and commands, without an engine."""

from __future__ import annotations

import http.client
import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deployed import ROOT, nodes
from tests.integration.composed import Composed

SLICES = 4


def get(address: str, port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": "localhost"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def state_of(composed: Composed, name: str) -> dict[str, Any]:
    code, body = get(composed.address(name), 9464, "/status")
    return dict(json.loads(body)) if code == 200 else {}


def make_secrets(composed: Composed) -> dict[str, bytes]:
    done = composed.run(composed.services["secrets"])
    assert done.returncode == 0, done.stderr
    files = sorted(composed.volume("secrets").iterdir())
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.night
@pytest.mark.timeout(420)
def test_the_compose_file_delivers_with_three_nodes_as_it_is_written(tmp_path: Path) -> None:
    with Composed(tmp_path) as composed:
        made = make_secrets(composed)
        assert make_secrets(composed) == made  # a second start keeps them
        composed.start_servers()
        for node in nodes():
            composed.start_node(node)
        # As in the file, nobody waits for the nodes: the load does.
        loaded = composed.run(composed.services["load"])
        assert loaded.returncode == 0, loaded.stdout + loaded.stderr + composed.log("delay-1")
        verdict = json.loads(loaded.stdout.splitlines()[-1])
        wrong = ("lost", "duplicated", "early", "altered")
        assert (verdict["delivered"], [verdict[name] for name in wrong]) == (1_000, [0] * 4)

        names = [node.name for node in nodes()]
        states = {name: state_of(composed, name) for name in names}
        sick = {n: state.get("problems") for n, state in states.items() if not state.get("healthy")}
        assert not sick
        assert {name: state["node_id"] for name, state in states.items()} == {n: n for n in names}
        owned = [row["slice"] for s in states.values() for row in s["slices"] if row["epoch"]]
        assert sorted(owned) == list(range(SLICES))
        for name in names:
            assert get(composed.address(name), 9465, "/healthz")[0] == 200, name

        prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        targets = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
        for host, _, port in (target.partition(":") for target in targets):
            code, body = get(composed.address(host), int(port), "/metrics")
            assert (code, b"delay_owned" in body) == (200, True), host
        for node in nodes():
            composed.stop_node(node)
