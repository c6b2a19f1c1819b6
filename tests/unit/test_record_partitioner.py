"""The partitioner against the values of Kafka's ``UtilsTest.testMurmur2`` and librdkafka's own."""

from __future__ import annotations

import pytest

from delayservice.contract.partitioner import murmur2, partition_for

JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"1": -1993445489,
    b"12": 126087238,
    b"123": -267702483,
    b"1234": -1614185708,
    b"12345": -1188365604,
}
LIBRDKAFKA_HASHES = {
    b"kafka": 0xD067CF64,
    b"giberish123456789": 0x8F552B0C,
    b"234": 0xE7C009CA,
    b"34": 0x873930DA,
    b"4": 0x5A4B5CA1,
    b"PreAmbleWillBeRemoved,ThePrePartThatIs": 0x78424F1C,
    b"": 0x106E08D9,
}
HASHES = {**{k: v % 2**32 for k, v in JAVA_HASHES.items()}, **LIBRDKAFKA_HASHES}


@pytest.mark.parametrize(("data", "expected"), HASHES.items())
def test_murmur2_is_java_s(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


@pytest.mark.parametrize(("data", "expected"), HASHES.items())
def test_a_partition_is_the_positive_hash_modulo_the_count(data: bytes, expected: int) -> None:
    assert partition_for(data, 12) == (expected & 0x7FFFFFFF) % 12
    assert partition_for(data, 1) == 0
