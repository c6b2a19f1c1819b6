"""A producer of header names of any bytes, by librdkafka's C API."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

import confluent_kafka

_PRODUCER: Final = 0
_END, _TOPIC, _PARTITION, _VALUE, _KEY, _MSGFLAGS, _HEADERS = 0, 1, 3, 4, 5, 7, 10
_COPY: Final = 2
_FLUSH_MS: Final = 30_000


def _library() -> ctypes.CDLL:
    package = Path(confluent_kafka.__file__).parent
    bundled = sorted((package.parent / "confluent_kafka.libs").glob("librdkafka-*.so*"))
    return ctypes.CDLL(str(bundled[0]) if bundled else "librdkafka.so.1")


def produce_raw(
    bootstrap: str, topic: str, headers: list[tuple[bytes, bytes]], key: bytes, value: bytes
) -> None:
    """Write one record to partition 0 and wait until the broker has it."""
    lib = _library()
    lib.rd_kafka_conf_new.restype = ctypes.c_void_p
    lib.rd_kafka_new.restype = ctypes.c_void_p
    why = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(lib.rd_kafka_conf_new())
    for name, text in ((b"bootstrap.servers", bootstrap.encode()), (b"log_level", b"0")):
        assert lib.rd_kafka_conf_set(conf, name, text, why, len(why)) == 0, why.value
    producer = ctypes.c_void_p(lib.rd_kafka_new(_PRODUCER, conf, why, len(why)))
    assert producer.value, why.value
    lib.rd_kafka_headers_new.restype = ctypes.c_void_p
    made = ctypes.c_void_p(lib.rd_kafka_headers_new(ctypes.c_size_t(len(headers))))
    for name, content in headers:
        sizes = ctypes.c_ssize_t(len(name)), ctypes.c_ssize_t(len(content))
        assert lib.rd_kafka_header_add(made, name, sizes[0], content, sizes[1]) == 0
    arguments: list[object] = [
        *(ctypes.c_int(_TOPIC), topic.encode()),
        *(ctypes.c_int(_PARTITION), ctypes.c_int32(0)),
        *(ctypes.c_int(_VALUE), value, ctypes.c_size_t(len(value))),
        *(ctypes.c_int(_KEY), key, ctypes.c_size_t(len(key))),
        *(ctypes.c_int(_MSGFLAGS), ctypes.c_int(_COPY)),
        *(ctypes.c_int(_HEADERS), made),
    ]
    error = lib.rd_kafka_producev(producer, *arguments, ctypes.c_int(_END))
    assert error == 0, error
    assert lib.rd_kafka_flush(producer, _FLUSH_MS) == 0
    lib.rd_kafka_destroy(producer)
