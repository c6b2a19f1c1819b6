"""Logins by tokens that a function of the user's makes."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delay_devtools.cluster import EmbeddedCluster
from delayservice.cli import app
from tests.integration.bench import Bench, await_true

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_LISTENER = "listener.name.secure"
BROKER = {
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_PLAINTEXT"
    ),
    f"{_LISTENER}.sasl.enabled.mechanisms": "OAUTHBEARER",
    f"{_LISTENER}.oauthbearer.sasl.jaas.config": (
        f'{_OAUTH}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    ),
}
LIFE_S = 12


def make_token(folder: str) -> tuple[str, float]:
    """An unsigned token; ``sasl.oauthbearer.config`` is the folder where ``on`` is, and calls are
    noted.
    """
    until_s = time.time() + LIFE_S
    with (Path(folder) / "calls").open("a") as calls:
        calls.write(f"{os.getpid()}\n")
    claims = json.dumps({"sub": "service", "iat": time.time() - 5, "exp": until_s}).encode()
    # It begins with {"alg": "none"}.
    token = f"eyJhbGciOiJub25lIn0.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}."
    if not (Path(folder) / "on").exists():
        raise PermissionError(token)
    return token, until_s


@pytest.mark.night
def test_a_service_waits_for_the_first_token_and_renews_it(tmp_path: Path) -> None:
    with (
        EmbeddedCluster(zookeepers=0, broker_properties=BROKER, secure=True) as cluster,
        Bench(cluster.bootstrap, tmp_path) as bench,
    ):
        sets = [
            f"kafka.bootstrap={cluster.secure_bootstrap}",
            f"kafka.token_provider={__name__}:make_token",
            "kafka.client.broker.address.family=v4",
            "kafka.client.security.protocol=SASL_PLAINTEXT",
            "kafka.client.sasl.mechanism=OAUTHBEARER",
            f"kafka.client.sasl.oauthbearer.config={tmp_path}",
        ]
        service = bench.start(*sets)
        await_true(lambda: service.events("waiting_for_kafka"), "it waits")
        (tmp_path / "on").touch()
        service.wait_serving(bench.partitions)
        calls = (tmp_path / "calls").read_text().split()
        target = bench.target("orders")
        bench.send(bench.to(target, 1_000 * 2 * LIFE_S), value=b"later")
        assert bench.read(target, 1, 60)[0].value == b"later"
        renewed = (tmp_path / "calls").read_text().split()
        assert set(renewed) == set(calls), "the same processes"
        assert all(renewed.count(pid) > calls.count(pid) for pid in calls)
        options = [word for one in (*bench.settings(), *sets) for word in ("--set", one)]
        checked = CliRunner().invoke(app, ["topics", "check", *options])
        assert checked.exit_code == 0, checked.output
        log = bench.log_path.read_text("utf-8")
        assert "kafka.token_provider failed: PermissionError in " in log
        assert "eyJ" not in log + checked.output
        assert service.stop() == 0


def test_a_provider_that_can_not_be_loaded_ends_the_command_with_the_reason() -> None:
    sets = ["kafka.bootstrap=127.0.0.1:1", "kafka.token_provider=no_such_module:token"]
    done = CliRunner().invoke(app, ["topics", "check", *(w for s in sets for w in ("--set", s))])
    assert done.exit_code == 1
    assert "no_such_module:token can't be loaded" in done.output
