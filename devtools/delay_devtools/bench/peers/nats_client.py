"""Producer and consumer of NATS JetStream, with the standard library alone.

Protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol; schedules: ADR-51. A
request that is not acknowledged is sent again with the same ``Nats-Msg-Id``, which JetStream stores
once. The consumer counts its position itself, as the bench's Kafka consumer does, so that only a
message that was stored twice arrives twice.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO, Final

from delay_devtools.bench.peers.received import QueueConsumer, Received, await_answers
from delay_devtools.clients import Headers
from delay_devtools.ports import LOOPBACK

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
