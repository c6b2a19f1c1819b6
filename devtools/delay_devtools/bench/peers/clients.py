"""Clients of RocketMQ and NATS, with those methods of Kafka clients that load and judge call.

NATS: ``nats-py``; schedules: ADR-51. RocketMQ's clients run the Java program ``Peer.java``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from delay_devtools import guard
from delay_devtools.clients import Headers
from delay_devtools.servers import LOOPBACK
from delay_devtools.service import tail
from delayservice.base.errors import DelayServiceError

_ANSWER_LOOK_S: Final = 0.05
_TIMEOUT_S: Final = 30.0
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Received:
    key_bytes: bytes
    value_bytes: bytes

    def key(self) -> bytes:
        return self.key_bytes

    def value(self) -> bytes:
        return self.value_bytes

    def error(self) -> None:
        # These clients recover from errors by themselves.
        ...


class QueueConsumer:
    """Base of the consumers: another thread of the client puts received messages into ``queue``."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Received] = SimpleQueue()

    def poll(self, timeout: float) -> Received | None:
        try:
            return self.queue.get(timeout=timeout)
        except Empty:
            return None

    def consume(self, limit: int, _timeout: float) -> list[Received]:
        return [self.queue.get() for _ in range(min(limit, self.queue.qsize()))]

    def close(self) -> None:
        # The connection ends with the process.
        ...


def await_answers(missing: Callable[[], int], timeout_s: float) -> int:
    deadline_s = time.monotonic() + timeout_s
    while (left := missing()) and time.monotonic() < deadline_s:
        time.sleep(_ANSWER_LOOK_S)
    return left


# Time without an answer after which a request is sent again, in seconds.
_RESEND_S: Final = 1.0
_RECONNECT_S: Final = 0.1


class _NatsLink:
    """Connection to a NATS server on a thread of its own, made again whenever it breaks."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="nats", daemon=True).start()
        self._client = Client()
        self._js = self._client.jetstream()
        connecting = self._client.connect(
            f"nats://{LOOPBACK}:{port}",
            reconnected_cb=self._reconnected,
            error_cb=self._failed,
            max_reconnect_attempts=-1,
            reconnect_time_wait=_RECONNECT_S,  # type: ignore[arg-type] # a float is slept as well
        )
        self._run(connecting).result(_TIMEOUT_S)

    def _run(self, work: Coroutine[Any, Any, _Value]) -> Future[_Value]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _reconnected(self) -> None: ...

    async def _failed(self, _error: Exception) -> None:
        # A killed server: the client connects again, and requests are repeated and counted.
        ...


class NatsProducer(_NatsLink):
    """Sender of delayed messages. Requests that are not acknowledged are sent again with the same
    ``Nats-Msg-Id``, which JetStream stores once.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._sent = self._acked = self.resent = 0
        self.last_error = ""

    def list_topics(self, topic: str, timeout: float) -> None:
        config = StreamConfig(
            name=topic,
            subjects=[f"{topic}.at.*", f"{topic}.out"],
            storage=StorageType.FILE,
            allow_msg_schedules=True,
        )
        self._run(self._js.add_stream(config)).result(timeout)

    def produce(self, topic: str, value: bytes, key: bytes, headers: Headers) -> None:
        # Only the header delay-at counts.
        due_s = int(dict(headers)["delay-at"] or 0) / 1_000
        names = {
            "Nats-Schedule": f"@at {datetime.fromtimestamp(due_s, UTC).isoformat()}",
            "Nats-Schedule-Target": f"{topic}.out",
            "Nats-Msg-Id": str(self._sent),
            "Key": key.decode(),
        }
        self._run(self._publish(f"{topic}.at.{self._sent}", value, names))
        self._sent += 1

    async def _publish(self, subject: str, value: bytes, names: dict[str, str]) -> None:
        while True:
            try:
                await self._js.publish(subject, value, timeout=_RESEND_S, headers=names)
            except Error as exc:
                self.resent += 1
                self.last_error = repr(exc)
                await asyncio.sleep(_RECONNECT_S)
            else:
                self._acked += 1
                return

    def poll(self, _timeout: float) -> None:
        # The link's thread repeats requests.
        ...

    def flush(self, timeout: float) -> int:
        return await_answers(lambda: self._sent - self._acked, timeout)


class NatsConsumer(QueueConsumer, _NatsLink):
    # It counts its position itself, so that only a message that was stored twice arrives twice.
    def __init__(self, port: int, stream: str) -> None:
        QueueConsumer.__init__(self)
        self._stream = stream
        # Stream sequence number after the last received message.
        self._next = 1
        _NatsLink.__init__(self, port)
        self._run(self._subscribe()).result(_TIMEOUT_S)

    async def _take(self, message: Msg) -> None:
        number = message.metadata.sequence.stream
        if number >= self._next:
            self._next = number + 1
            key = (message.headers or {})["Key"]
            self.queue.put(Received(key.encode(), message.data))

    async def _reconnected(self) -> None:
        # After a restart of the server its consumer does not exist there.
        while True:
            try:
                await self._subscribe()
            except Error:
                await asyncio.sleep(_RECONNECT_S)
            else:
                return

    async def _subscribe(self) -> None:
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._next,
            ack_policy=AckPolicy.NONE,
        )
        await self._js.subscribe(
            f"{self._stream}.out", stream=self._stream, config=config, cb=self._take
        )


class _Program:
    """Java program that reads lines of words from standard input, and writes such lines."""

    def __init__(self, command: Sequence[str], log_path: str) -> None:
        words = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *command]
        with Path(log_path).open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        if self._process.stdout is None or self._process.stdout.readline() != b"ready\n":
            raise DelayServiceError(
                f"the client of RocketMQ did not start; its log ends:\n{tail(Path(log_path))}"
            )
        threading.Thread(target=self._read, name="rocketmq", daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.take(line.split())

    def take(self, words: list[bytes]) -> None:
        raise NotImplementedError

    def say(self, line: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line)
            self._process.stdin.flush()


class RocketProducer(_Program):
    def __init__(self, command: Sequence[str], log_path: str) -> None:
        self._sent = self._acked = self.resent = 0
        self.last_error = ""
        super().__init__(command, log_path)

    def take(self, words: list[bytes]) -> None:
        if words[0] == b"acked":
            self._acked += 1
        else:
            self.resent += 1
            self.last_error = b" ".join(words[1:]).decode()

    def list_topics(self, topic: str, timeout: float) -> None:
        # The program has created the topic at its start.
        ...

    def produce(self, _topic: str, value: bytes, key: bytes, headers: Headers) -> None:
        self._sent += 1
        due_ms = int(dict(headers)["delay-at"] or 0)
        self.say(b"%d %s %s\n" % (due_ms, key, value.hex().encode()))

    def poll(self, _timeout: float) -> None:
        # The program repeats failed attempts.
        ...

    def flush(self, timeout: float) -> int:
        return await_answers(lambda: self._sent - self._acked, timeout)


class RocketConsumer(QueueConsumer, _Program):
    def __init__(self, command: Sequence[str], log_path: str) -> None:
        QueueConsumer.__init__(self)
        _Program.__init__(self, command, log_path)

    def take(self, words: list[bytes]) -> None:
        key, value = words
        self.queue.put(Received(key, bytes.fromhex(value.decode())))


PeerProducer: TypeAlias = NatsProducer | RocketProducer


def producer(client: Mapping[str, str], topic: str) -> PeerProducer:
    if "port" in client:
        return NatsProducer(int(client["port"]))
    return RocketProducer(_command(client, "load", topic), client["log"])


def consumer(client: Mapping[str, str], topic: str) -> NatsConsumer | RocketConsumer:
    if "port" in client:
        return NatsConsumer(int(client["port"]), topic)
    return RocketConsumer(_command(client, "judge", topic), client["log"])


def _command(client: Mapping[str, str], role: str, topic: str) -> list[str]:
    return [*json.loads(client["command"]), role, client["servers"], topic]
