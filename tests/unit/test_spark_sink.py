from __future__ import annotations

from pathlib import Path

import pytest

from connectors.spark.common.sink import mark_of, next_batch, portable, records_written
from delayservice.base.errors import KafkaEdgeError


@pytest.mark.parametrize(
    ("mark", "batch", "records"),
    [
        (mark_of(7, 1_250), 7, 1_250),
        (mark_of(7, 0), 7, 0),
        (mark_of(0, 2**31), 0, 2**31),
        (mark_of(7, 1_250), 8, 0),  # of a later batch nothing is written yet
        (0, 0, 0),
    ],
)
def test_a_mark_says_how_much_of_a_batch_is_written(mark: int, batch: int, records: int) -> None:
    assert records_written(mark, batch) == records


def test_marks_ascend_and_begin_above_that_of_a_new_part() -> None:
    marks = [0, mark_of(0, 0), mark_of(0, 9), mark_of(1, 0), mark_of(1, 1), mark_of(2**30, 2**31)]
    assert marks == sorted(set(marks))
    assert marks[-1] < 2**63


def test_a_batch_before_one_that_was_written_is_not_skipped_in_silence() -> None:
    with pytest.raises(KafkaEdgeError, match="batch 5 was written before, and 2 after it"):
        records_written(mark_of(7, 1), 5)


def test_the_next_batch_is_one_that_no_part_has_begun() -> None:
    assert next_batch([0, 0]) == 0
    assert next_batch([0, mark_of(0, 1)]) == 1
    assert next_batch([mark_of(4, 1), mark_of(6, 0)]) == 7


def test_executors_get_certificates_and_keys_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("a certificate", "ascii")
    client = {
        "bootstrap.servers": "b:1",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.key.location": "/nowhere/key.pem",  # librdkafka says what is wrong with it
    }
    assert portable(client) == {
        "bootstrap.servers": "b:1",
        "ssl.ca.pem": "a certificate",
        "ssl.key.location": "/nowhere/key.pem",
    }
