"""The pages, as what is typed from them."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = sorted((ROOT / "docs").rglob("*.md"))
PAGES: Final = (*sorted(ROOT.glob("*.md")), *DOCS)
FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_GOES_ON: Final = re.compile(r"(\\|\|)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: ``page`` is its path below the root, ``line`` where it begins."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command line of a block, with all lines that it goes on over."""

    page: str
    place: str
    text: str


def blocks(language: str | None = None, page: str | None = None) -> list[Block]:
    """All blocks in the order of reading; in one language, of one page, if it is named."""
    found = []
    for path in PAGES:
        text = path.read_text("utf-8")
        name = str(path.relative_to(ROOT))
        for fence in FENCE.finditer(text):
            line = text.count("\n", 0, fence.start()) + 1
            found.append(Block(name, line, fence[2], textwrap.dedent(fence[3])))
    return [one for one in found if language in (None, one.language) and page in (None, one.page)]


def commands(page: str | None = None) -> list[Command]:
    """All command lines of shell blocks, in the order of reading."""
    return [
        Command(block.page, block.place, line)
        for block in blocks("sh", page)
        for line in _unfolded(block.text)
    ]


def _unfolded(text: str) -> list[str]:
    """A line that ends with a backslash or a pipe goes on with the next one."""
    whole: list[str] = []
    goes_on = False
    for line in text.splitlines():
        if goes_on:
            whole[-1] += "\n" + line
        elif line.strip():
            whole.append(line)
        goes_on = _GOES_ON.search(line.rstrip()) is not None
    return whole


def bare(command: str) -> str:
    """A command without its remark, folded into one line."""
    text = re.sub(r"\s*\\\n\s*", " ", command)
    text = re.sub(r"\s*\n\s*", " ", text)
    return re.sub(r"\s+#\s.*$", "", text).strip()
