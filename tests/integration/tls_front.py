"""TLS in front of a server that has none, with certificates of its own.

ZooKeeper's own TLS needs Netty's epoll classes, which nothing else here does.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self


def make_authority(folder: Path) -> Path:
    """A certificate authority of its own; gives its certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(
        folder,
        *("req", "-x509", "-days", "2", "-subj", "/CN=authority"),
        *("-keyout", "ca.key", "-out", "ca.pem", *_KEY),
    )
    return folder / "ca.pem"


def make_certificate(folder: Path, host: str) -> Path:
    """A server's certificate and key in one file, by the authority of this folder."""
    made = folder / f"{host}.pem"
    (folder / "names").write_text(f"subjectAltName=DNS:{host}", encoding="ascii")
    _openssl(folder, "req", "-subj", f"/CN={host}", "-keyout", "key", "-out", "asked", *_KEY)
    _openssl(
        folder,
        *("x509", "-req", "-in", "asked", "-days", "2", "-extfile", "names", "-out", "signed"),
        *("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
    )
    made.write_bytes((folder / "key").read_bytes() + (folder / "signed").read_bytes())
    return made


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)  # noqa: S607  # wherever it is


class TlsFront:
    """Listens on a port of 127.0.0.1 and passes everything on, decrypted."""

    def __init__(self, certificate: Path, host: str, port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._behind = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with (
            suppress(OSError),
            client,
            self._context.wrap_socket(client, server_side=True) as front,
            socket.create_connection(self._behind) as behind,
            selectors.DefaultSelector() as ready,
        ):
            ready.register(front, selectors.EVENT_READ, behind)
            ready.register(behind, selectors.EVENT_READ, front)
            while all(_moved(key.fileobj, key.data) for key, _ in ready.select()):
                pass


def _moved(source: object, target: socket.socket) -> bool:
    """Whether there is more to come. What TLS has decrypted does not make its socket ready."""
    assert isinstance(source, socket.socket)
    data = source.recv(65536)
    while isinstance(source, ssl.SSLSocket) and source.pending():
        data += source.recv(65536)
    target.sendall(data)
    return bool(data)
