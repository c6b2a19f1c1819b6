"""Clients of RocketMQ and NATS, with those methods of Kafka's that load and judge call.

NATS: ``nats-py``; schedules: ADR-51. RocketMQ's clients run the Java program ``Peer.java``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from select import select
from typing import IO, Any, Final, TypeVar, cast

from confluent_kafka import Message, Producer
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from delay_devtools.child import start, tail
from delay_devtools.servers import LOOPBACK
from delayservice.base.errors import DelayServiceError
from delayservice.smoke.judge import JudgePlan, Source
from delayservice.smoke.load import Headers, LoadPlan

_ANSWER_LOOK_S: Final = 0.05
_TIMEOUT_S: Final = 30.0
# Time for a client to start, which ends before the helper's own.
_START_S: Final = 100.0
_DUMP_S: Final = 2.0
_Value = TypeVar("_Value")


class _Source:
    """Log whose messages another thread of the client puts into a queue."""

    def __init__(self, *client: Any) -> None:  # noqa: ANN401 (arguments of the client)
        self._queue: SimpleQueue[Message] = SimpleQueue()
        super().__init__(*client)

    def put(self, key: bytes, value: bytes) -> None:
        self._queue.put(Message(key=key, value=value))

    def take(self, timeout_s: float) -> list[Message]:
        try:
            first = self._queue.get(timeout=timeout_s)
        except Empty:
            return []
        return [first, *(self._queue.get() for _ in range(self._queue.qsize()))]

    def rest(self) -> Iterator[list[Message]]:
        yield from ()  # these clients know no end of a log


class _Sink:
    """Sender whose client repeats failed attempts by itself; they are counted."""

    _sent = _acked = resent = 0

    def poll(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def flush(self, timeout_s: float) -> int:
        deadline_s = time.monotonic() + timeout_s
        while (left := self._sent - self._acked) and time.monotonic() < deadline_s:
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


class _NatsSink(_Sink, _NatsLink):
    """Sender of delayed messages. Requests that are not acknowledged are sent again with the same
    ``Nats-Msg-Id``, which JetStream stores once.
    """

    def __init__(self, port: int, stream: str) -> None:
        super().__init__(port)
        config = StreamConfig(
            name=stream,
            subjects=[f"{stream}.at.*", f"{stream}.out"],
            storage=StorageType.FILE,
            allow_msg_schedules=True,
        )
        self._run(self._js.add_stream(config)).result(_TIMEOUT_S)

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
            except Error:
                self.resent += 1
                await asyncio.sleep(_RECONNECT_S)
            else:
                self._acked += 1
                return


class _NatsSource(_Source, _NatsLink):
    # It counts its position itself, so that only a message that was stored twice arrives twice.
    def __init__(self, port: int, stream: str) -> None:
        super().__init__(port)
        self._stream = stream
        # Stream sequence number after the last received message.
        self._next = 1
        self._run(self._subscribe()).result(_TIMEOUT_S)

    async def _take(self, message: Msg) -> None:
        number = message.metadata.sequence.stream
        if number >= self._next:
            self._next = number + 1
            self.put((message.headers or {})["Key"].encode(), message.data)

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
        with Path(log_path).open("ab") as log:
            self._process = start(command, log, pipe=subprocess.PIPE)
        self._out = cast("IO[bytes]", self._process.stdout)
        if not self._answers(_START_S):
            self._process.send_signal(signal.SIGQUIT)  # Java prints the stacks of its threads
            raise self._not_ready(f"was not ready within {_START_S:.0f} s", log_path)
        if self._out.readline() != b"ready\n":
            raise self._not_ready("did not start", log_path)
        threading.Thread(target=self._read, name="rocketmq", daemon=True).start()

    def _answers(self, timeout_s: float) -> bool:
        return bool(select([self._out], [], [], timeout_s)[0])

    def _not_ready(self, what: str, log_path: str) -> DelayServiceError:
        said = b""
        while self._answers(_DUMP_S) and (more := os.read(self._out.fileno(), 1 << 16)):
            said += more
        self._process.kill()
        return DelayServiceError(
            f"the client of RocketMQ {what}. Its log ends:\n{tail(Path(log_path))}\n"
            f"It printed:\n{said.decode(errors='replace')}"
        )

    def _read(self) -> None:
        for line in self._out:
            self.heard(line.split())

    def heard(self, words: list[bytes]) -> None:
        raise NotImplementedError

    def say(self, line: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line)
            self._process.stdin.flush()


class _RocketSink(_Sink, _Program):
    def heard(self, words: list[bytes]) -> None:
        if words[0] == b"acked":
            self._acked += 1
        else:
            self.resent += 1

    def produce(self, _topic: str, value: bytes, key: bytes, headers: Headers) -> None:
        self._sent += 1
        due_ms = int(dict(headers)["delay-at"] or 0)
        self.say(b"%d %s %s\n" % (due_ms, key, value.hex().encode()))


class _RocketSource(_Source, _Program):
    def heard(self, words: list[bytes]) -> None:
        key, value = words
        self.put(key, bytes.fromhex(value.decode()))


def sink(plan: LoadPlan, _errors: list[str]) -> Producer:
    client = plan.client
    if "port" in client:
        return cast("Producer", _NatsSink(int(client["port"]), plan.topic))
    return cast("Producer", _RocketSink(_command(client, "load", plan.topic), client["log"]))


def source(plan: JudgePlan) -> Source:
    client, (topic,) = plan.client, plan.topics
    if "port" in client:
        return _NatsSource(int(client["port"]), topic)
    return _RocketSource(_command(client, "judge", topic), client["log"])


def _command(client: Mapping[str, str], role: str, topic: str) -> list[str]:
    return [*json.loads(client["command"]), role, client["servers"], topic]
