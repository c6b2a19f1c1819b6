"""Networks of a test's own: a bridge on this machine, and namespaces that are cut off from it.

    with Network() as network, Namespace(network) as away:
        subprocess.run([*away.wrapper, "ping", network.address])
        away.cut(9092)          # what goes to this port is dropped without a word
        away.heal()

Only interfaces and namespaces named ``dsf…`` are made and removed; the machine's own network is
left as it is. Needs root, and the programs ``ip`` and ``nft``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Self

_PROGRAMS: Final = {"ip": "iproute2", "nft": "nftables"}
_PREFIX: Final = "dsf"
_SUBNETS: Final = 254
_CUT: Final = """\
table inet cut {{
    chain output {{
        type filter hook output priority 0
        oifname != "lo" tcp dport {ports} drop
    }}
    chain input {{
        type filter hook input priority 0
        iifname != "lo" tcp sport {ports} drop
    }}
}}
"""
_CUT_HERE: Final = """\
table inet {table} {{
    chain input {{
        type filter hook input priority 0
        tcp dport {ports} drop
    }}
}}
"""
_numbers = itertools.count(2)


def network_missing() -> str:
    """Return why this machine can't make networks for tests; empty: it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [package for program, package in _PROGRAMS.items() if not shutil.which(program)]
    if missing:
        return f"needs the Debian packages {' '.join(missing)}: make fault-tools"
    probe = f"{_PREFIX}probe{os.getpid()}"
    done = _run("ip", "netns", "add", probe)
    _run("ip", "netns", "del", probe)
    return done.stderr.strip() if done.returncode else ""


def _run(*command: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def _must(*command: str, text: str = "") -> None:
    done = _run(*command, text=text)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


@contextlib.contextmanager
def ports_cut(ports: Iterable[int]) -> Iterator[None]:
    """Drop silently all packets to these ports of this machine."""
    table = f"{_PREFIX}{os.getpid()}"
    _must("nft", "-f", "-", text=_CUT_HERE.format(table=table, ports=_listed(ports)))
    try:
        yield
    finally:
        _must("nft", "delete", "table", "inet", table)


def _listed(ports: Iterable[int]) -> str:
    return f"{{ {', '.join(map(str, ports))} }}"


def _sweep() -> None:
    """Remove bridges and namespaces that killed runs have left behind."""
    for namespace in Path("/run/netns").glob(f"{_PREFIX}-*"):
        if not _lives(namespace.name.split("-")[1]):
            _run("ip", "netns", "del", namespace.name)
    for interface in Path("/sys/class/net").glob(f"{_PREFIX}[0-9]*"):
        if not _lives(re.sub(r"[bv].*", "", interface.name.removeprefix(_PREFIX))):
            _run("ip", "link", "del", interface.name)


def _lives(pid: str) -> bool:
    return Path("/proc", pid).exists()


class Network:
    """A bridge with an address that servers of this machine can listen on.

    The address stays when a namespace's link goes down, for it is the bridge's.
    """

    def __init__(self) -> None:
        number = next(_numbers)
        self._bridge = f"{_PREFIX}{os.getpid()}b{number}"
        # From the range that is set aside for tests of networks (RFC 2544).
        self.subnet = f"198.18.{(os.getpid() + number) % _SUBNETS}"
        self.address = f"{self.subnet}.1"

    @property
    def bridge(self) -> str:
        """Return the name of its interface."""
        return self._bridge

    def __enter__(self) -> Self:
        """Make it."""
        _sweep()
        _must("ip", "link", "add", self._bridge, "type", "bridge")
        _must("ip", "addr", "add", f"{self.address}/24", "dev", self._bridge)
        _must("ip", "link", "set", self._bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        _run("ip", "link", "del", self._bridge)


class Namespace:
    """A network namespace with one link, to the bridge. ``wrapper`` starts a program in it."""

    def __init__(self, network: Network) -> None:
        number = next(_numbers)
        self.name = f"{_PREFIX}-{os.getpid()}-{number}"
        self.wrapper = ("ip", "netns", "exec", self.name)
        self._network = network
        self._host_end = f"{_PREFIX}{os.getpid()}v{number}"
        self._address = f"{network.subnet}.{number}/24"

    def __enter__(self) -> Self:
        """Make it."""
        _must("ip", "netns", "add", self.name)
        try:
            peer = ("peer", "name", "eth0", "netns", self.name)
            _must("ip", "link", "add", self._host_end, "type", "veth", *peer)
            _must("ip", "link", "set", self._host_end, "master", self._network.bridge, "up")
            _must("ip", "-n", self.name, "addr", "add", self._address, "dev", "eth0")
            _must("ip", "-n", self.name, "link", "set", "lo", "up")
            self.plug()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it, after the end of all processes in it."""
        with contextlib.suppress(OSError):
            _run("ip", "link", "del", self._host_end)
        _run("ip", "netns", "del", self.name)

    def cut(self, *ports: int) -> None:
        """Drop silently all packets to and from these ports; no ports: all packets."""
        which = _listed(ports) if ports else "0-65535"
        self.heal()
        _must(*self.wrapper, "nft", "-f", "-", text=_CUT.format(ports=which))

    def heal(self) -> None:
        """Let all packets through again."""
        _run(*self.wrapper, "nft", "delete", "table", "inet", "cut")

    def unplug(self) -> None:
        """Take the link down: programs inside are told at once that nothing can be reached."""
        _must("ip", "-n", self.name, "link", "set", "eth0", "down")

    def plug(self) -> None:
        """Take the link up."""
        _must("ip", "-n", self.name, "link", "set", "eth0", "up")
