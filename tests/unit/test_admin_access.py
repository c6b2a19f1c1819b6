"""Who may ask the admin API: tokens by name and right, and its certificate."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from delayservice.admin.http_server import Certificate, HttpServer
from delayservice.admin.server import admin_tokens, make_app
from delayservice.base.errors import DelayServiceError, SettingsError
from delayservice.cli import app as command_line
from delayservice.commands.api import connect
from delayservice.config.settings import load
from delayservice.metrics.status import SliceState
from tests.integration.bench import await_true
from tests.integration.tls_front import make_authority, make_certificate
from tests.unit.test_admin_answers import TOKEN, context_of

READING = "a token that may read"
READER = (f"admin.tokens.viewer.token={READING}", "admin.tokens.viewer.may=read")


def served(*sets: str, certificate: Certificate | None = None) -> HttpServer:
    context = context_of(None, *sets, slices=(SliceState(0, state="owner"),))
    app = make_app(context, admin_tokens(context.settings))
    return HttpServer(app, "admin", "127.0.0.1:0", certificate)


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    """Client of a node one of whose tokens is for reading."""
    server = served(*READER)
    with httpx.Client(base_url=f"http://{server.serve()}") as client:
        yield client
    server.close()


def test_a_token_for_reading_closes_reads_to_others(client: httpx.Client) -> None:
    assert client.get("/v1/node").status_code == 401
    assert client.get("/v1/node", headers={"Authorization": f"Bearer {READING}"}).is_success
    assert client.get("/v1/node", auth=("anyone", READING)).is_success
    assert client.get("/healthz").is_success


def test_nothing_is_changed_without_a_token_for_changes(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    changes = [(method, path) for path in paths for method in paths[path] if method != "get"]
    assert len(changes) == 7
    for method, path in changes:
        for shown in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}"):
            answer = client.request(method, path, headers={"Authorization": shown})
            assert answer.status_code == 401, path
            why = "is not this node's" if "wrong" in shown else "need a token"
            assert why in answer.json()["detail"]
            assert answer.headers["www-authenticate"].startswith("Bearer")
        answer = client.request(method, path, headers={"Authorization": f"Bearer {READING}"})
        assert answer.status_code == 403, path
        assert answer.json()["detail"].startswith("the token viewer is for reading only")


def test_a_node_whose_tokens_are_for_reading_makes_one_for_changes(tmp_path: Path) -> None:
    found = admin_tokens(load(None, [f"node.state_dir={tmp_path}", *READER], {}))
    assert [(one.name, one.may_change) for one in found] == [("admin", True), ("viewer", False)]


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (["admin.tokens.a.token=short"], "16 characters at least"),
        (["admin.tokens.a.may=read"], "set token or token_file"),
        (["admin.tokens.a.token_file={file}"], "holds 5 characters"),
        (["admin.tokens.a.token_file={file}.none"], "can't be read"),
        (["admin.tokens.a.token=sixteen-and-an-ä"], "printable ASCII characters only"),
        ([f"admin.tokens.{name}.token={READING}" for name in "ab"], "a and b have the same token"),
        (["admin.certificate_file={file}"], "certificate_file and key_file, or neither"),
    ],
)
def test_a_token_or_certificate_that_can_not_be_used_is_refused(
    tmp_path: Path, sets: list[str], why: str
) -> None:
    file = tmp_path / "token"
    file.write_text("short\n")
    with pytest.raises(SettingsError, match=why) as caught:
        admin_tokens(load(None, [one.format(file=file) for one in sets], {}))
    assert READING not in str(caught.value)


# --- TLS -----------------------------------------------------------------------------------------


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address of a server with the certificate in ``tmp_path/tls.pem``, and its authority."""
    authority = make_authority(tmp_path)
    pem = make_certificate(tmp_path, "localhost").rename(tmp_path / "tls.pem")
    server = served(certificate=Certificate(pem, pem))
    address = server.serve() or ""
    yield address.replace("127.0.0.1", "localhost"), authority
    server.close()


def status(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(command_line, ["status", *options])
    return done.exit_code, done.output


def test_commands_ask_a_server_with_a_certificate(tls: tuple[str, Path], tmp_path: Path) -> None:
    address, authority = tls
    assert status("--api", f"https://{address}", "--ca-file", str(authority))[0] == 0
    assert "CERTIFICATE_VERIFY_FAILED" in status("--api", f"https://{address}")[1]
    assert "begin with https://" in status("--api", address)[1]
    own = [f"admin.listen=127.0.0.1:{address.rpartition(':')[2]}", f"admin.key_file={address}"]
    for file, exit_status in (("tls", 0), ("another", 1)):
        make_certificate(tmp_path, "another")
        sets = [*own, f"admin.certificate_file={tmp_path}/{file}.pem"]
        assert status(*(word for one in sets for word in ("--set", one)))[0] == exit_status
    with pytest.raises(DelayServiceError, match="neither http:// nor https://"):
        connect(load(None, [], {}), "ftp://localhost:1")


def test_a_new_certificate_is_served_once_it_goes_with_its_key(
    tls: tuple[str, Path], tmp_path: Path
) -> None:
    host, _, port = tls[0].rpartition(":")
    pem = tmp_path / "tls.pem"
    key, begins, _ = pem.read_text().partition("-----BEGIN CERTIFICATE")
    renewed, mixed = make_certificate(tmp_path, "renewed"), tmp_path / "mixed"
    mixed.write_text(key + begins + renewed.read_text().partition(begins)[2])

    def seen() -> str:
        return ssl.get_server_certificate((host, int(port)))

    before = seen()
    with capture_logs() as lines:
        mixed.rename(pem)
        await_true(lambda: [one["event"] for one in lines] == ["certificate_not_read"], "a line")
        assert seen() == before
        renewed.rename(pem)
        await_true(lambda: seen() != before, "the new certificate is served")
