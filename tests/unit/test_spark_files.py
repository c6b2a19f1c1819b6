"""Small files beside Parquet."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.spark.common.files import read_text, write_text
from delayservice.base.errors import DelayServiceError


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
