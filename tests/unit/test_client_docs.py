from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text("utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_leads_to_the_example_consumer() -> None:
    assert "(examples/retrying_consumer.py)" in PAGE
    assert (ROOT / "docs" / "examples" / "retrying_consumer.py").exists()


def test_every_python_snippet_of_the_page_is_python() -> None:
    for text in SNIPPETS:
        compile(text, "docs/client.md", "exec")
