"""Producer and consumer of RocketMQ, which run the Java program ``Peer.java``."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

from delay_devtools import guard
from delay_devtools.bench.peers.received import QueueConsumer, Received, await_answers
from delay_devtools.clients import Headers
from delayservice.base.errors import DelayServiceError


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
