"""What nodes write into ZooKeeper can be read back, and what others write there does no harm."""

from __future__ import annotations

import msgspec
import pytest

from ha.notes import LifeNote, NodeNote, OwnerNote, decode, encode, worker_name, worker_of


@pytest.mark.parametrize(
    "note",
    [
        NodeNote("a", "a1", 2, 1, "rack", "host:1", 7),
        LifeNote("a", "a1", 1, (0, 2), {0: 5}),
        OwnerNote("a", "a1", 1, 7, "b"),
    ],
    ids=lambda note: type(note).__name__,
)
def test_a_note_is_read_as_it_was_written(note: msgspec.Struct) -> None:
    assert decode(encode(note), type(note)) == note


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"\xff", b'{"node_id": "\xff"}', b'{"node_id": 5}', b'{"worker": 1}'),
        b'{"node_id": "a", "instance": "a1", "workers": 0}',  # slices are numbered by workers
    ],
)
@pytest.mark.parametrize("kind", [OwnerNote, NodeNote])
def test_an_invalid_zookeeper_note_is_ignored(
    data: bytes, kind: type[OwnerNote | NodeNote]
) -> None:
    assert decode(data, kind) is None


def test_a_note_of_a_later_version_is_read_without_what_is_new() -> None:
    data = b'{"node_id": "a", "instance": "a1", "worker": 0, "epoch": 3, "news": [1]}'
    assert decode(data, OwnerNote) == OwnerNote("a", "a1", 0, 3)


def test_a_worker_is_found_by_its_name() -> None:
    assert worker_of(worker_name("rack:1.a", 12)) == ("rack:1.a", 12)


@pytest.mark.parametrize("name", ["", "a", ":1", "a:", "a:b", "a:-1", "a:1 "])
def test_other_names_are_nobodys(name: str) -> None:
    assert worker_of(name) is None
