"""Choice of free ports outside of the range that Linux takes for outgoing connections."""

import random
import socket
from typing import Final

from delayservice.base.errors import ClusterError

LOOPBACK = "127.0.0.1"
# Settings with which a node serves metrics and page on free ports; it logs their numbers.
ANY_PORTS: Final = ("metrics.listen=127.0.0.1:0", "admin.listen=127.0.0.1:0")

# Below the range from which Linux takes ports for outgoing connections (32768 and up): else a
# client that retries while its broker is down may be given the broker's own port.
_PORT_MIN = 15_000
_PORT_STOP = 32_000
_TRIES_MAX = 2_000


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    # Another process may bind a port before the server does: the cluster then starts over.
    chooser = random.SystemRandom()  # seeded by the system: parallel test workers must differ
    held: dict[int, socket.socket] = {}
    try:
        for _ in range(_TRIES_MAX):
            if len(held) == count:
                return list(held)
            port = chooser.randrange(_PORT_MIN, _PORT_STOP)
            bound = _bind(host, port) if port not in held else None
            if bound is not None:
                held[port] = bound
    finally:
        for bound in held.values():
            bound.close()
    raise ClusterError(
        f"No {count} free ports between {_PORT_MIN} and {_PORT_STOP} on {host}. "
        "Stop what listens there."
    )


def _bind(host: str, port: int) -> socket.socket | None:
    candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        candidate.bind((host, port))
    except OSError:
        candidate.close()
        return None
    return candidate
