"""Small files beside Parquet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from connectors.spark.archive import Archive, Batch
from connectors.spark.audit.evidence import all_of
from connectors.spark.audit.state import AuditManifest, State
from connectors.spark.common.cut import Cut
from connectors.spark.common.files import names_in, read_text, write_text
from connectors.spark.common.topics import Span
from delayservice.base.errors import DelayServiceError

CUT = Cut(5, (), {("t", 0): Span(0, 9)}, {"t": 1})
# The kernel ends the process by SIGXFSZ in the middle of the text.
KILLED = """
import resource, signal, sys
from connectors.spark.common.files import write_text
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
write_text(sys.argv[1], "x" * 100)
"""


def killed_while_writing(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode < 0
    assert [one for one in path.parent.iterdir() if one.stat().st_size == 10]


def test_a_text_is_read_as_it_was_written_and_replaced(tmp_path: Path) -> None:
    path = f"{tmp_path}/made/of/text"
    assert read_text(path) is None
    for text in ("first", "zweite \u2013 \u0434"):
        write_text(path, text)
        assert read_text(path) == text


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "manifest-1.json"
    path.write_bytes(b'{"v": "\xff"}')
    with pytest.raises(DelayServiceError, match=r"manifest-1.json is damaged: it is not UTF-8"):
        read_text(str(path))


def test_a_folder_that_fails_is_an_error_of_one_line_that_names_it(tmp_path: Path) -> None:
    """So that a job that repeats its work tries again."""
    path = tmp_path / "file"
    path.write_bytes(b"")
    for wrong, named in (
        (f"{path}/manifest-1.json", str(path)),
        ("ftp://host/it", "ftp://host/it"),
    ):
        with pytest.raises(DelayServiceError, match=re.escape(named)):
            write_text(wrong, "text")


def test_a_text_that_a_kill_tore_is_neither_read_nor_listed(tmp_path: Path) -> None:
    killed_while_writing(tmp_path / "manifest-1.json")
    assert names_in(str(tmp_path)) == []
    write_text(f"{tmp_path}/manifest-1.json", "whole")
    assert names_in(str(tmp_path)) == ["manifest-1.json"]
    killed_while_writing(tmp_path / "manifest-1.json")
    assert read_text(f"{tmp_path}/manifest-1.json") == "whole"


def test_an_audit_and_an_archive_go_on_after_a_kill_from_what_is_complete(tmp_path: Path) -> None:
    state, manifest = State(cast("Any", None), str(tmp_path)), AuditManifest(number=1)
    state.commit(manifest, AuditManifest())
    killed_while_writing(tmp_path / "manifest-00000002.json")
    assert state.newest() == manifest
    archive, batch = Archive(str(tmp_path)), Batch(0, {("t", 0): 9}, CUT, all_of(CUT))
    archive.commit(batch)
    killed_while_writing(tmp_path / "batches" / "00000001.json")
    assert archive.newest() == batch


def test_an_archive_keeps_its_last_two_manifests(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path))
    for number in (0, 1, 2, 2, 3):
        batch = Batch(number, {("t", 0): 9 + number}, CUT, all_of(CUT))
        archive.commit(batch)
        assert archive.newest() == batch
    assert names_in(f"{tmp_path}/batches") == ["00000002.msgpack", "00000003.msgpack"]
