from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.schedule.csv_rows import csv_rows

NAMES = ("id", "value", "note")
CELL = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    st.sampled_from('\\"\r\n\0\t ,;\ufeff\u2028{}a'), max_size=12
)
WRITTEN = st.sampled_from(
    [(csv.QUOTE_MINIMAL, "\r\n"), (csv.QUOTE_ALL, "\r\n"), (csv.QUOTE_ALL, "\n")]
)


def as_lines(data: bytes) -> list[bytes]:
    """Split a file as Spark does, which leaves out the end of the last line."""
    return data.removesuffix(b"\n").split(b"\n")


@given(
    st.lists(st.tuples(CELL, CELL, CELL)),
    WRITTEN,
    st.sampled_from(["utf-8", "utf-8-sig"]),
    st.permutations(NAMES),
)
def test_csv_written_by_python_is_read_byte_for_byte(
    rows: list[tuple[str, str, str]], written: tuple[int, str], encoding: str, order: list[str]
) -> None:
    quoting, end = written
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=quoting, lineterminator=end)  # type: ignore[arg-type]  # ints
    writer.writerow(order)
    for row in rows:
        cells = dict(zip(NAMES, row, strict=True))
        writer.writerow([cells[name] for name in order])
    data = file.getvalue().encode(encoding)
    found = list(csv_rows(as_lines(data), NAMES))
    assert [tuple(row.cells) for row in found] == rows
    assert all(row.refusal is None for row in found)


def test_a_row_that_cannot_be_read_is_named_and_the_next_one_is_read() -> None:
    data = (
        b"id,value\n"
        b"1,one\n"
        b'2,"{\\"a\\": 1}"\n'  # Spark's own way to write a quote
        b'3,"two\nlines"\n'
        b"4\n"
        b"5,\xe9t\xe9\n"
        b"\n"
        b"6,a\rb\n"
        b"7,seven\n"
        b'8,"never closed\n'
        b"9,nine\n"
    )
    found = list(csv_rows(as_lines(data), ["value", "id"]))
    read = [(row.line, row.cells[0]) for row in found if row.refusal is None]
    assert read == [(2, "one"), (4, "two\nlines"), (10, "seven")]
    refused = [(row.line, row.refusal, row.text) for row in found if row.refusal is not None]
    assert [(line, text) for line, _, text in refused] == [
        (3, '2,"{\\"a\\": 1}"'),
        (6, "4"),
        (7, "5,\ufffdt\ufffd"),
        (9, "6,a\rb"),
        (11, '8,"never closed\n9,nine'),
    ]
    assert refused[1][1] == "it has 1 cells, and the first line has 2"


def test_all_rows_of_a_file_with_other_columns_are_refused() -> None:
    (row,) = csv_rows([b"id,other", b"1,one"], ["id", "value"])
    assert row.refusal is not None
    assert row.refusal.endswith("it names id, other, and another file id, value")
