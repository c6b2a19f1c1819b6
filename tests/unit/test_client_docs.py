from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text("utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_shows_the_example_consumer_as_it_is() -> None:
    assert (ROOT / "examples" / "retrying_consumer.py").read_text("utf-8") in SNIPPETS


def test_every_python_snippet_of_the_page_is_python() -> None:
    for text in SNIPPETS:
        compile(text, "docs/client.md", "exec")
