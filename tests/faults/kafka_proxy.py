"""A proxy between Kafka's clients and brokers that can let the end of a transaction come late, as a
network or a stalled thread of a broker may do. The client's connection is reset, the one to
the broker stays open, and the held EndTxn is forwarded on it later.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import LOOPBACK, free_ports

ADD_PARTITIONS: Final = 24
END_TXN: Final = 26
_WRITTEN_S: Final = 0.15
"""Time in which outputs are written that were added to a transaction before its checkpoint."""


class ProxiedCluster(EmbeddedCluster):
    """Brokers with a second listener, whose advertised port is that of a proxy."""

    def _plan(self) -> None:
        super()._plan()
        ports = iter(free_ports(2 * len(self._brokers)))
        self.ports = list(zip(ports, ports, strict=True))
        """Of each broker the port of the proxy and the one behind it."""
        for broker, (proxy_port, upstream_port) in zip(self._brokers, self.ports, strict=True):
            pairs = (line.split("=", 1) for line in broker.config_path.read_text().splitlines())
            lines = dict(pairs)
            lines["listeners"] += f",PROXIED://{LOOPBACK}:{upstream_port}"
            lines["advertised.listeners"] += f",PROXIED://{LOOPBACK}:{proxy_port}"
            lines["listener.security.protocol.map"] += ",PROXIED:PLAINTEXT"
            lines["inter.broker.listener.name"] = "PLAINTEXT"
            broker.config_path.write_text("".join(f"{k}={v}\n" for k, v in lines.items()))

    @property
    def proxied(self) -> str:
        """Addresses of the proxy."""
        return ",".join(f"{LOOPBACK}:{proxy_port}" for proxy_port, _ in self.ports)


@dataclass
class Held:
    """An EndTxn that the broker has not got yet. ``answer``: the broker's error code, once it has;
    ``by_other``: whether it was let go when another writer wrote already.
    """

    writer: str
    frame: bytes
    upstream: asyncio.StreamWriter
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    answer: int | None = None
    by_other: bool = False


class KafkaProxy:
    """Proxy of a ``ProxiedCluster``, on a thread of its own.

    Args:
        cluster: the cluster.
        checkpoint: topic of checkpoints.
        target: topic of outputs. The held EndTxn is let go before the same writer adds the
            checkpoint to a transaction that has outputs, or another writer adds it.
    """

    def __init__(
        self, cluster: ProxiedCluster, checkpoint: str = "none", target: str = "none"
    ) -> None:
        self._ports = cluster.ports
        self._checkpoint = checkpoint.encode()
        self._target = target.encode()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listens = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._wanted: bool | None = None
        self._held: Held | None = None
        self._has_outputs = False
        """Whether the open transaction has outputs, and no checkpoint yet."""
        self.done: list[Held] = []
        """Those that the broker has answered."""

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        assert self._listens.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        """Cut everything."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as servers:
            for proxy_port, upstream_port in self._ports:
                serve = partial(self._serve, upstream_port)
                server = await asyncio.start_server(serve, LOOPBACK, proxy_port)
                await servers.enter_async_context(server)
            self._listens.set()
            await self._stop.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    def hold_next(self, *, commit: bool) -> None:
        """Hold the next commit or abort."""
        self._wanted = commit

    @property
    def holds(self) -> bool:
        """Whether an EndTxn is held."""
        return self._held is not None

    def let_go(self) -> int | None:
        """Forward the EndTxn that is held, and return the broker's error code."""
        held, loop = self._held, self._loop
        assert held is not None
        assert loop is not None
        asyncio.run_coroutine_threadsafe(self._let_go(held), loop).result(30)
        return held.answer

    # --- connections -----------------------------------------------------------------------------

    async def _serve(
        self, upstream_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            answers, upstream = await asyncio.open_connection(LOOPBACK, upstream_port)
        except OSError:  # the broker is down
            writer.close()
            return
        back = asyncio.ensure_future(self._pump(answers, writer))
        try:
            while True:
                size = await reader.readexactly(4)
                frame = size + await reader.readexactly(struct.unpack(">i", size)[0])
                if self._is_wanted(frame):
                    self._wanted = None
                    self._held = Held(_writer_of(frame), frame, upstream)
                    back.cancel()
                    await asyncio.wait([back])
                    _reset(writer)
                    await self._await_answer(answers, self._held)
                    return
                await self._before(frame)
                upstream.write(frame)
                await upstream.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # the client is gone, or the proxy ends
        finally:
            back.cancel()
            writer.close()
            upstream.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()  # as the broker has done

    def _is_wanted(self, frame: bytes) -> bool:
        if self._wanted is None or _key_of(frame) != END_TXN:
            return False
        return _is_commit(frame) == self._wanted

    # --- the late one ----------------------------------------------------------------------------

    async def _before(self, frame: bytes) -> None:
        """Let the held EndTxn go if the time has come: outputs are written, and their cursor is
        not.
        """
        held, key = self._held, _key_of(frame)
        if key == END_TXN:
            self._has_outputs = False
        if held is None or key != ADD_PARTITIONS:
            return
        if self._checkpoint not in frame:
            self._has_outputs |= self._target in frame
            return
        held.by_other = _writer_of(frame) != held.writer
        if not held.by_other and (not self._has_outputs or self._target in frame):
            return  # there are no outputs, or both are added together
        await asyncio.sleep(_WRITTEN_S)
        await self._let_go(held)

    async def _let_go(self, held: Held) -> None:
        self._held = None
        held.upstream.write(held.frame)
        await asyncio.wait_for(held.answered.wait(), 10)

    async def _await_answer(self, answers: asyncio.StreamReader, held: Held) -> None:
        """The answer is that of the first correlation id that equals the held one's."""
        correlation = held.frame[8:12]
        while True:
            size = struct.unpack(">i", await answers.readexactly(4))[0]
            body = await answers.readexactly(size)
            if body[:4] == correlation:
                held.answer = struct.unpack_from(">h", body, 8)[0]
                self.done.append(held)
                held.answered.set()
                return


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset instead of an end."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


def _key_of(frame: bytes) -> int:
    key: int = struct.unpack_from(">h", frame, 4)[0]
    return key


def _body_at(frame: bytes) -> int:
    """Where the body of a request with header version 1 begins."""
    client_bytes: int = struct.unpack_from(">h", frame, 12)[0]
    return 14 + max(client_bytes, 0)


def _writer_of(frame: bytes) -> str:
    """The transactional id, the first field of EndTxn and AddPartitionsToTxn."""
    at = _body_at(frame)
    size: int = struct.unpack_from(">h", frame, at)[0]
    return frame[at + 2 : at + 2 + size].decode()


def _is_commit(frame: bytes) -> bool:
    at = _body_at(frame)
    size: int = struct.unpack_from(">h", frame, at)[0]
    return bool(frame[at + 2 + size + 8 + 2])
