"""Reads the headers of a message, and finds those that the client library can't show as they are.

The client's Python binding takes a header's name as a C string, so it cuts a name at a zero byte,
and its API has no lengths of names. librdkafka itself knows them: it keeps the serialized size of
all headers of a message, from which the cut names differ.

====================  =======================  ==================================================
object                offset                   field
====================  =======================  ==================================================
``Message``           object header + 4 words  address of the headers; 0: none, or converted
``rd_kafka_headers``  5 words                  serialized size of all headers, bytes
====================  =======================  ==================================================

A serialized header has name and value, each after its length as a varint (zigzag).

Sources: ``confluent_kafka.h`` of confluent-kafka-python, ``rdkafka_header.h`` and ``rdlist.h`` of
librdkafka. Both fields are private, so ``_are_sizes_known`` tries them before they are used.
"""

from __future__ import annotations

import ctypes
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import Message, cimpl

from delayservice.contract.entry import UNREADABLE, Headers

_WORD: Final = ctypes.sizeof(ctypes.c_void_p)
_POINTER_AT: Final = object.__basicsize__ + 4 * _WORD
_SIZE_AT: Final = 5 * _WORD
# Size of the two lengths in a serialized header whose name and value are shorter than 64 bytes.
_LENGTH_BYTES: Final = 2
_word: Final = ctypes.c_size_t.from_address

# Function that calls ``message.headers()`` from C. For a header name that is not UTF-8 the client
# returns a result *and* sets an exception. A call from C raises the exception; a plain call, once
# Python has optimised it, does not, and the exception appears somewhere later.
_call_headers: Final = methodcaller("headers")


def headers_of(message: Any) -> Headers | None:  # noqa: ANN401  # the stubs make fields optional
    """Return the headers of a message that was not asked for them before; None: it has none.
    ``UNREADABLE`` if a name is not UTF-8 or has a zero byte.
    """
    pointer = _word(id(message) + _POINTER_AT).value if type(message) is _checked else 0
    size = _word(pointer + _SIZE_AT).value if pointer else 0
    try:
        headers: Headers | None = _call_headers(message)
    except (SystemError, UnicodeDecodeError):
        # A header whose name is not UTF-8: the client raises once, and must not be asked again.
        return UNREADABLE
    if pointer and headers:
        # Cheap for short headers in ASCII; what is left are longer ones, or a name that was cut.
        for name, value in headers:
            size -= len(name) + _LENGTH_BYTES
            if value:
                size -= len(value)
        if size and size != _left_over(headers):
            return UNREADABLE
    return headers


def _left_over(headers: Headers) -> int:
    over = 0
    for name, value in headers:
        encoded = name.encode()
        over += len(encoded) - len(name) - _LENGTH_BYTES
        over += varint_size(len(encoded)) + varint_size(len(value or b""))
    return over


def varint_size(number: int) -> int:
    """Return the size in bytes of a number of 0 or more as a zigzag varint."""
    return max(-(-(2 * number).bit_length() // 7), 1)


def _are_sizes_known() -> bool:
    # To find out, put headers into a message and ask the client for them.
    library = ctypes.PyDLL(cimpl.__file__)
    library.rd_kafka_headers_new.restype = ctypes.c_void_p
    made = ctypes.c_void_p(library.rd_kafka_headers_new(ctypes.c_size_t(1)))
    name, value = b"a\0b", b"cd"
    library.rd_kafka_header_add(
        made, name, ctypes.c_ssize_t(len(name)), value, ctypes.c_ssize_t(len(value))
    )
    message: Any = Message("")
    field = _word(id(message) + _POINTER_AT)
    size = _word(made.value + _SIZE_AT).value if made.value else 0
    if field.value or size != len(name) + len(value) + _LENGTH_BYTES:
        return False
    field.value = made.value or 0
    is_taken: bool = message.headers() == [("a", value)]
    field.value = 0  # as the client leaves it, unless it keeps something else there
    return is_taken


# False: this build of the client keeps sizes elsewhere, so no name with a zero byte is found.
NAMES_ARE_CHECKED: Final = _are_sizes_known()
_checked: Final = Message if NAMES_ARE_CHECKED else None
