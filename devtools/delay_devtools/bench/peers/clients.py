"""Clients of RocketMQ and NATS, with those methods of Kafka clients that load and judge call.

NATS: https://docs.nats.io/reference/reference-protocols/nats-protocol; schedules: ADR-51.
RocketMQ's clients run the Java program ``Peer.java``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import BinaryIO, Final, TypeAlias

from delay_devtools import guard
from delay_devtools.clients import Headers
from delay_devtools.servers import LOOPBACK
from delayservice.base.errors import DelayServiceError

_ANSWER_LOOK_S: Final = 0.05


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


_RECONNECT_S: Final = 0.1
_LOOK_S: Final = 0.1
# Time without an answer after which a request is sent again, in seconds.
_RESEND_S: Final = 1.0
_CONNECT: Final = 'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
# Id of the subscription to replies; subscriptions to due messages have higher ids.
_ANSWERS: Final = 1
_HEADS: Final = b"NATS/1.0\r\n"
# Number of words in the first line of a message that names a reply subject, by the line's first
# word.
_WORDS_OF_REPLY: Final = {b"MSG": 5, b"HMSG": 6}


@dataclass(frozen=True, slots=True)
class NatsMessage:
    # An empty reply means that no reply is wanted.
    subject: str
    subscription: int
    reply: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_error(self) -> bool:
        # An empty body means that no service answers the subject.
        return not self.body or b'"error"' in self.body


def frame(subject: str, body: bytes, reply: str, headers: Mapping[str, str]) -> bytes:
    head = _HEADS + b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items()) + b"\r\n"
    line = f"HPUB {subject} {reply} {len(head)} {len(head) + len(body)}\r\n"
    return line.encode() + head + body + b"\r\n"


def read_message(line: bytes, file: BinaryIO) -> NatsMessage | None:
    words = line.split()
    if not words or words[0] not in _WORDS_OF_REPLY:
        return None
    has_reply = len(words) == _WORDS_OF_REPLY[words[0]]
    head_bytes = int(words[-2]) if words[0] == b"HMSG" else 0
    body = file.read(int(words[-1]) + 2)[:-2]
    lines = body[:head_bytes].decode().splitlines()[1:]
    headers = dict(line.split(": ", 1) for line in lines if ": " in line)
    reply = words[3].decode() if has_reply else ""
    return NatsMessage(words[1].decode(), int(words[2]), reply, headers, body[head_bytes:])


class _Link:
    """Connection to a NATS server, made on a thread of its own and again whenever it breaks."""

    def __init__(
        self,
        port: int,
        take: Callable[[NatsMessage], None],
        made: Callable[[], None] = lambda: None,
    ) -> None:
        self._port, self._take, self._made = port, take, made
        self.inbox = f"inbox-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        threading.Thread(target=self._run, name="nats", daemon=True).start()

    def send(self, data: bytes) -> None:
        # Without a connection the bytes are dropped: callers repeat unanswered requests.
        with self._lock, suppress(OSError):
            if self._socket is not None:
                self._socket.sendall(data)

    def _run(self) -> None:
        while True:
            with suppress(OSError):
                self._read()
            self._socket = None
            time.sleep(_RECONNECT_S)

    def _read(self) -> None:
        with socket.create_connection((LOOPBACK, self._port)) as made, made.makefile("rb") as file:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            file.readline()
            made.sendall(f"{_CONNECT}SUB {self.inbox}.* {_ANSWERS}\r\n".encode())
            self._socket = made
            self._made()
            for line in file:
                message = read_message(line, file)
                if message is not None:
                    self._take(message)
                elif line.startswith(b"PING"):
                    self.send(b"PONG\r\n")


class NatsProducer:
    """Sender of delayed messages. Requests that are not acknowledged are sent again with the same
    ``Nats-Msg-Id``, which JetStream stores once.
    """

    def __init__(self, port: int) -> None:
        # Monotonic time of the last attempt in s, and the bytes of each unacknowledged request, by
        # reply subject.
        self._waiting: dict[str, tuple[float, bytes]] = {}
        self._looked_s = 0.0
        self._requests = 0
        self.resent = 0
        self.last_error = ""
        self._link = _Link(port, self._answered)

    def _answered(self, answer: NatsMessage) -> None:
        if answer.is_error:
            self.last_error = answer.body.decode()
        else:
            self._waiting.pop(answer.subject, None)

    def _request(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        self._requests += 1
        reply = f"{self._link.inbox}.{self._requests}"
        data = frame(subject, body, reply, headers)
        self._waiting[reply] = time.monotonic(), data
        self._link.send(data)

    def list_topics(self, topic: str, timeout: float) -> None:
        config = {
            "name": topic,
            "subjects": [f"{topic}.at.*", f"{topic}.out"],
            "storage": "file",
            "allow_msg_schedules": True,
        }
        self._request(f"$JS.API.STREAM.CREATE.{topic}", json.dumps(config).encode(), {})
        self.flush(timeout)
        self.resent = 0

    def produce(self, topic: str, value: bytes, key: bytes, headers: Headers) -> None:
        # Only the header delay-at counts.
        due_s = int(dict(headers)["delay-at"] or 0) / 1_000
        names = {
            "Nats-Schedule": f"@at {datetime.fromtimestamp(due_s, UTC).isoformat()}",
            "Nats-Schedule-Target": f"{topic}.out",
            "Nats-Msg-Id": str(self._requests),
            "Key": key.decode(),
        }
        self._request(f"{topic}.at.{self._requests}", value, names)

    def poll(self, _timeout: float) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for reply, (sent_s, data) in list(self._waiting.items()):
            if now_s - sent_s > _RESEND_S:
                self.resent += 1
                self._waiting[reply] = now_s, data
                self._link.send(data)

    def flush(self, timeout: float) -> int:
        def unanswered() -> int:
            self.poll(0)
            return len(self._waiting)

        return await_answers(unanswered, timeout)


class NatsConsumer(QueueConsumer):
    # It counts its position itself, so that only a message that was stored twice arrives twice.
    def __init__(self, port: int, stream: str) -> None:
        super().__init__()
        self._stream = stream
        # Stream sequence number after the last received message; a consumer created anew starts
        # there.
        self._next = 1
        self._number = 0
        self._is_on = False
        self._asked_s = 0.0
        self._link = _Link(port, self._take, self._lost)

    def _lost(self) -> None:
        self._is_on = False

    def _take(self, message: NatsMessage) -> None:
        if message.subject == f"{self._link.inbox}.{self._number}":
            self._is_on = not message.is_error
        elif message.subscription == _ANSWERS + self._number:
            self._next = int(message.reply.split(".")[-4]) + 1
            self.queue.put(Received(message.headers["Key"].encode(), message.body))

    def _ensure(self) -> None:
        # After a restart of the server the consumer does not exist there.
        if self._is_on or time.monotonic() - self._asked_s < _RESEND_S:
            return
        self._asked_s = time.monotonic()
        self._number += 1
        # The server delivers only where it has this very subject, not a wildcard.
        deliver = f"{self._link.inbox}.deliver.{self._number}"
        config = {
            "deliver_subject": deliver,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._next,
            "ack_policy": "none",
            "filter_subject": f"{self._stream}.out",
        }
        body = json.dumps({"stream_name": self._stream, "config": config}).encode()
        subject, reply = (
            f"$JS.API.CONSUMER.CREATE.{self._stream}",
            f"{self._link.inbox}.{self._number}",
        )
        self._link.send(
            f"SUB {deliver} {_ANSWERS + self._number}\r\n".encode()
            + frame(subject, body, reply, {})
        )

    def poll(self, timeout: float) -> Received | None:
        self._ensure()
        return super().poll(timeout)


class _Program:
    """Java program that reads lines of words from standard input, and writes such lines."""

    def __init__(self, command: Sequence[str]) -> None:
        words = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *command]
        self._process = subprocess.Popen(  # noqa: S603 (our own program)
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self._process.stdout is None or self._process.stdout.readline() != b"ready\n":
            raise DelayServiceError(
                "the client of RocketMQ did not start; the log of the helper process says why"
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
    def __init__(self, command: Sequence[str]) -> None:
        self._sent = self._acked = self.resent = 0
        self.last_error = ""
        super().__init__(command)

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
    def __init__(self, command: Sequence[str]) -> None:
        QueueConsumer.__init__(self)
        _Program.__init__(self, command)

    def take(self, words: list[bytes]) -> None:
        key, value = words
        self.queue.put(Received(key, bytes.fromhex(value.decode())))


PeerProducer: TypeAlias = NatsProducer | RocketProducer


def producer(client: Mapping[str, str], topic: str) -> PeerProducer:
    if "port" in client:
        return NatsProducer(int(client["port"]))
    return RocketProducer(_command(client, "load", topic))


def consumer(client: Mapping[str, str], topic: str) -> NatsConsumer | RocketConsumer:
    if "port" in client:
        return NatsConsumer(int(client["port"]), topic)
    return RocketConsumer(_command(client, "judge", topic))


def _command(client: Mapping[str, str], role: str, topic: str) -> list[str]:
    return [*json.loads(client["command"]), role, client["servers"], topic]
