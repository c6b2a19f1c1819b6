"""A node's admin API, as its users have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
from typer.testing import CliRunner, Result

from delay_devtools.service import ServiceProcess
from delayservice.cli import app
from tests.integration.bench import await_true

TOKEN = "a token that only the tests know"  # noqa: S105  # of a node that lives for a test


def probed(service: ServiceProcess, path: str) -> tuple[int, Any]:
    """Status and body of a probe; 0 before the service listens."""
    served = service.events("admin_served")
    try:
        answer = httpx.get(f"http://{served[-1]['url']}{path}", timeout=10) if served else None
    except httpx.TransportError:
        answer = None
    return (0, {}) if answer is None else (answer.status_code, answer.json())


def metrics_of(service: ServiceProcess, start: str = "") -> list[str]:
    """The lines of a service's metrics that begin so."""
    url = service.events("metrics_served")[-1]["url"]
    lines = httpx.get(f"http://{url}/metrics", timeout=10).text.splitlines()
    return [line for line in lines if line.startswith(start)]


class Asked:
    """The API of a running service, which was given ``TOKEN``."""

    def __init__(self, service: ServiceProcess) -> None:
        await_true(lambda: service.events("admin_served"), "the API is served")
        self.address: str = service.events("admin_served")[-1]["url"]
        self._client = httpx.Client(base_url=f"http://{self.address}", timeout=60)
        self._bearer = {"Authorization": f"Bearer {TOKEN}"}

    def close(self) -> None:
        self._client.close()

    def raw(self, method: str, path: str, **sent: Any) -> httpx.Response:
        return self._client.request(method, path, **sent)

    def get(self, path: str, **query: Any) -> Any:
        answer = self.raw("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def change(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.raw(method, path, json=body, headers=self._bearer)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def refused(
        self, method: str, path: str, status: int, content_type: str = "", **sent: Any
    ) -> str:
        """The detail of a refusal."""
        headers = self._bearer | ({"Content-Type": content_type} if content_type else {})
        answer = self.raw(method, path, headers=headers, **sent)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        detail: str = answer.json()["detail"]
        return detail

    def command(self, *arguments: str, sets: Sequence[str] = ()) -> Result:
        """A command of ours that asks this node."""
        asked = [*arguments, "--api", self.address]
        for one in (f"admin.tokens.tester.token={TOKEN}", *sets):
            asked += ["--set", one]
        return CliRunner().invoke(app, asked)
