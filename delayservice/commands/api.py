"""Client of a running node's admin API, for the commands that use it."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import NothingThereError, RefusedError
from delayservice.commands.options import CommonOptions
from delayservice.config.admin import is_sendable

if TYPE_CHECKING:
    from ssl import SSLContext

    from httpx import Client, Response

    from delayservice.config.settings import Settings

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

_TIMEOUT_S: Final = 45.0
_PEM_END: Final = "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Api:
    client: Client
    address: str
    # For error messages; empty: a token is sent.
    no_token: str = ""

    def get(self, path: str, **query: object) -> Any:  # noqa: ANN401  # JSON
        """Send a GET request; return its JSON answer. Query values of None are left out.

        Raises:
            NothingThereError: the requested object does not exist.
            RefusedError: the node refuses the request, or there is no connection to it.
            DelayServiceError: there is no answer, or the node failed.
        """
        asked = {name: value for name, value in query.items() if value is not None}
        return self._answer("GET", path, params=asked)

    def send(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401  # JSON
        """Send a request with a JSON body; return the JSON answer, or None for an empty one. Raises
        as ``get``.
        """
        return self._answer(method, path, json=body)

    def _answer(self, method: str, path: str, **sent: Any) -> Any:  # noqa: ANN401  # JSON
        from httpx import ConnectError, ConnectTimeout, HTTPError

        try:
            response = self.client.request(method, path, **sent)
        except HTTPError as exc:
            is_unsent = isinstance(exc, ConnectError | ConnectTimeout)
            raise (RefusedError if is_unsent else DelayServiceError)(
                f"no node answers on {self.address}: {exc}; is it running, is that its "
                "admin.listen, and does its address begin with https:// if it has a certificate?"
            ) from exc
        if response.is_error:
            raise _refusal(response, self)
        return response.json() if response.content else None


@dataclass(frozen=True, slots=True)
class ApiOptions(CommonOptions):
    """Options of the commands that use a node's admin API."""

    PANEL: ClassVar = CommonOptions.PANEL

    api: Annotated[str | None, typer.Option(metavar="[https://]HOST:PORT")] = None
    """The node's admin API; admin.listen by default."""
    ca_file: Annotated[Path | None, typer.Option(dir_okay=False)] = None
    """PEM file with the certificates to trust in the API. Default: those of the system."""
    token_file: Annotated[Path | None, typer.Option(dir_okay=False)] = None
    """File with the token. Default: the first configured one for changes, or the node's own."""

    def connect(self) -> Api:
        return connect(self.settings(), self.api, self.token_file, ca_file=self.ca_file)


def _refusal(response: Response, api: Api) -> DelayServiceError:
    kind = RefusedError if response.is_client_error else DelayServiceError
    try:
        problem = response.json()
        told = "; ".join([problem["detail"], *problem["errors"]])
        if response.status_code == HTTPStatus.NOT_FOUND:
            kind = NothingThereError
    except (ValueError, KeyError, TypeError):
        told = f"status {response.status_code}: the server there is not a node of this version"
    if response.status_code == HTTPStatus.UNAUTHORIZED and api.no_token:
        told += f"; none was sent: {api.no_token}"
    return kind(f"{api.address}: {told}")


def connect(
    settings: Settings,
    address: str | None = None,
    token_file: Path | None = None,
    timeout_s: float = _TIMEOUT_S,
    ca_file: Path | None = None,
) -> Api:
    """Return a client of the admin API at ``address``; None: at ``admin.listen`` of the settings.
    An address without ``https://`` or ``http://`` is as ``admin.certificate_file`` says.
    ``token_file``: None: the first configured token for changes, or the one that the node made.
    """
    from httpx import URL, Client, InvalidURL

    where = address or settings.admin.listen
    if not where:
        raise DelayServiceError("admin.listen is empty: this node has no API; give --api")
    scheme, has_scheme, where = where.rpartition("://")
    where = reachable(where)
    scheme = scheme if has_scheme else "https" if settings.admin.certificate_file else "http"
    try:
        url = URL(f"{scheme}://{where}")
    except InvalidURL as exc:
        raise DelayServiceError(f"{where!r} is no HOST:PORT: {exc}") from exc
    if url.scheme not in {"http", "https"}:
        raise DelayServiceError(f"{scheme}://{where} begins with neither http:// nor https://")
    token, no_token = _token(settings, token_file, url.host)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    is_own = address is None and ca_file is None and url.scheme == "https"
    trust = _trust(settings.admin.certificate_file if is_own else ca_file, is_own=is_own)
    client = Client(base_url=url, headers=headers, timeout=timeout_s, verify=trust)
    return Api(client, where, no_token)


def _trust(file: Path | None, *, is_own: bool) -> SSLContext:
    """Return what to trust: the certificates in ``file`` (None: the system's); if ``is_own``, only
    the first of them, as that of the server itself.
    """
    from ssl import PROTOCOL_TLS_CLIENT, SSLContext, VerifyFlags, create_default_context

    if file is None:
        return create_default_context()
    trust = SSLContext(PROTOCOL_TLS_CLIENT)
    try:
        if is_own:
            first = "".join(file.read_text("utf-8").partition(_PEM_END)[:2])
            trust.load_verify_locations(cadata=first)
        else:
            trust.load_verify_locations(file)
    except (OSError, ValueError) as exc:
        raise DelayServiceError(f"the certificates in {file} can't be used: {exc}") from exc
    if is_own:
        # It is asked on loopback, for which its certificate need not have a name.
        trust.check_hostname = False
        trust.verify_flags |= VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return trust


def reachable(listen: str) -> str:
    """Return the address, ``host:port``, at which this machine reaches a server that listens on
    ``listen``: loopback, if that is every address.
    """
    host, colon, port = listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 (no bind)
    return f"{host}{colon}{port}"


def _token(settings: Settings, token_file: Path | None, host: str) -> tuple[str | None, str]:
    # Without a token, the reason: reading may need none. Without a configured token, that of the
    # state folder is sent to a loopback ``host`` only.
    from delayservice.config.admin import made_token_path

    if token_file is not None:
        return _read_token(token_file), ""
    path = made_token_path(settings.node.state_dir)
    try:
        for token in settings.admin.configured_tokens():
            if token.may_change:
                return token.secret, ""
        if not _is_loopback(host):
            return None, f"{path} is for loopback addresses only; --token-file names one for others"
        return _read_token(path), ""
    except DelayServiceError as exc:
        return None, str(exc)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise DelayServiceError(f"the token in {path} can't be read: {exc}") from exc
    if not token or not is_sendable(token):
        raise DelayServiceError(f"{path} holds no token: printable ASCII characters are expected")
    return token
