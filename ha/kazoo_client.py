"""Makes clients of kazoo, a ZooKeeper library, and reads facts that only kazoo's log contains.

With kazoo 2.11, only its log has the negotiated session timeout, at a level that also shows the
session's password, and the reason why a connection failed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import ACL, make_acl, make_digest_acl

from delayservice.base.errors import DelayServiceError
from delayservice.config.cluster import ZooKeeper

_RECONNECT_S_MAX: Final = 1.0
_CONNECT_S: Final = 15.0
_GRANTED: Final = "Session created"
# Beginnings of warnings of kazoo that only follow from a failure it has logged before.
_CHANGE: Final = ("Transition to", "Session has expired")

_log = structlog.get_logger(__name__)


class KazooLog(logging.Logger):
    """Logger that takes from kazoo's log the session timeout and the reason of a failed connection.
    All else is dropped: lines below warning and the requests in error messages may show passwords.
    """

    def __init__(self) -> None:
        super().__init__("kazoo.tap", level=1)
        # Session timeout that ZooKeeper granted, milliseconds; 0: unknown.
        self.session_timeout_ms = 0
        # Last failure since a session was granted, for people; empty: no failure.
        self.trouble = ""

    def handle(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith(_GRANTED) and isinstance(record.args, tuple):
            self.session_timeout_ms = int(str(record.args[2]))
            self.trouble = ""
        elif record.levelno >= logging.WARNING and not str(record.msg).startswith(_CHANGE):
            self.trouble = _cause(record)
            _log.debug("zookeeper_client", what=self.trouble)


def make_client(
    options: ZooKeeper, log: KazooLog, resumed: tuple[int, bytes] | None = None
) -> KazooClient:
    """Return a client for one session, not started yet. ``resumed``: id and password of the session
    to go on with; None: a new session.
    """
    password = options.secret()
    return KazooClient(
        hosts=options.hosts,
        timeout=options.session_timeout_s,
        client_id=resumed,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=_RECONNECT_S_MAX),
        command_retry=KazooRetry(max_tries=1),
        logger=log,
        auth_data=(
            [("digest", f"{options.username}:{password}")] if options.auth == "digest" else None
        ),
        sasl_options=(
            {
                "mechanism": "DIGEST-MD5",
                "username": options.username,
                "password": password,
            }
            if options.auth == "sasl"
            else None
        ),
        default_acl=acl_of(options),
        use_ssl=options.tls,
        verify_certs=True,
        check_hostname=options.tls,
        ca=_text(options.tls_ca_file),
        certfile=_text(options.tls_cert_file),
        keyfile=_text(options.tls_key_file),
    )


@contextmanager
def connected(
    options: ZooKeeper, resumed: tuple[int, bytes] | None = None
) -> Iterator[KazooClient]:
    """Yield a connected client, and close it and its session afterwards. ``resumed``: id and
    password of the session to go on with; None, or if it has ended: a new session.
    """
    log = KazooLog()
    client = make_client(options, log, resumed)
    try:
        try:
            client.start(_CONNECT_S)
        except KazooTimeoutError as exc:
            raise DelayServiceError(
                f"ZooKeeper at {options.hosts} was not reached in {_CONNECT_S:.0f} s: "
                f"{log.trouble or 'no server answers'}"
            ) from exc
        yield client
    finally:
        client.stop()
        client.close()


def acl_of(options: ZooKeeper) -> list[ACL] | None:
    # None: everybody may do everything.
    accepted = [make_acl(options.auth, one, all=True) for one in options.accepted]
    if options.auth == "digest":
        return [make_digest_acl(options.username, options.secret(), all=True), *accepted]
    if options.auth == "sasl":
        return [make_acl("sasl", options.username, all=True), *accepted]
    return None


def _text(path: object) -> str | None:
    return None if path is None else str(path)


def _cause(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return record.getMessage()
    reason = f" ({error.__cause__})" if error.__cause__ else ""
    return f"{str(record.msg).partition(':')[0]}: {type(error).__name__}: {error}{reason}"
