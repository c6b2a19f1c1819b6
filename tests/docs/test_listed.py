"""What the pages say and nobody types: it is listed with a reason, and can be read as a command."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from typer.exceptions import TyperException

from delayservice.cli import app
from tests.docs.pages import DOCS, PAGES, ROOT, Block, Command, bare, blocks, commands
from tests.docs.tables import (
    ASKS,
    BEFORE,
    LONG,
    NOT_TYPED,
    PYTHON_NOT_RUN,
    SERVERS,
    SMALLER,
    STATUSES,
    Listed,
)

COMPOSE: Final = (ROOT / "docker-compose.yml").read_text("utf-8")
EVERY: Final = commands()
SAID: Final = [bare(one.text) for one in EVERY]


def not_typed() -> list[Command]:
    return [one for one in EVERY if is_listed(one)]


def is_listed(command: Command) -> bool:
    said = bare(command.text)
    return any(row.page == command.page and said.startswith(row.begins) for row in NOT_TYPED)


@pytest.mark.parametrize("row", NOT_TYPED, ids=lambda row: f"{row.page}: {row.begins}")
def test_every_listed_command_is_on_its_page(row: Listed) -> None:
    assert any(one.page == row.page and bare(one.text).startswith(row.begins) for one in EVERY)


def test_every_block_is_in_a_language_that_somebody_looks_at() -> None:
    """A shell block under another name would be typed by nobody."""
    known = {"sh", "python", "toml", "json", "java", "go", "mermaid", "text", "yaml", ""}
    assert {block.language for block in blocks()} <= known


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_the_index_leads_to_every_page(page: Path) -> None:
    """Pages of ``docs/internals`` are listed there, and that list in ``docs/README.md``."""
    top, index = ROOT / "docs" / "README.md", page.parent / "README.md"
    within = index if page != index else top
    path = page.relative_to(within.parent)
    assert page == top or f"({path})" in within.read_text("utf-8")


@pytest.mark.parametrize("begins", [*LONG, *SMALLER, *SERVERS, *ASKS, *STATUSES])
def test_every_other_row_of_the_tables_is_of_use(begins: str) -> None:
    assert any(said.startswith(begins) for said in SAID)


def test_every_preparation_belongs_to_a_page() -> None:
    assert set(BEFORE) <= {one.page for one in EVERY}


@pytest.mark.parametrize("command", not_typed(), ids=lambda one: f"{one.place} {one.text[:40]}")
def test_commands_that_are_not_run_can_be_parsed(command: Command) -> None:
    words = shlex.split(bare(command.text))
    program = words[0].rpartition("/")[2]
    READERS.get(program, lambda _: None)(words[1:])
    for word in words:
        for path in _ours(word):
            assert (ROOT / path).exists(), f"{command.place}: there is no {path}"


def _ours(word: str) -> Iterator[str]:
    """Files of the repository that a word names."""
    for part in word.split("="):
        top = part.partition("/")[0]
        if top in {"deploy", "requirements"} or part.endswith((".example.toml", ".cluster.toml")):
            yield part
        if (found := re.search(r"(?:^|site-packages/)(connectors/\S+\.py)$", part)) is not None:
            yield found[1]


# --- what is no shell block ----------------------------------------------------------------------


def is_python_listed(block: Block) -> bool:
    rows = [row for row in PYTHON_NOT_RUN if row.page == block.page]
    return any(block.text.startswith(row.begins) for row in rows)


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.place)
def test_every_python_block_is_python(block: Block) -> None:
    compile(block.text, block.place, "exec")


@pytest.mark.parametrize("row", PYTHON_NOT_RUN, ids=lambda row: f"{row.page}: {row.begins}")
def test_every_listed_python_example_is_on_its_page(row: Listed) -> None:
    assert any(one.text.startswith(row.begins) for one in blocks("python", row.page))


@pytest.mark.parametrize("block", blocks("json"), ids=lambda block: block.place)
def test_every_json_block_is_json(block: Block) -> None:
    json.loads(block.text)


MODULE: Final = re.compile(r"`(?:\.venv/bin/)?python -m ([\w.]+)([^`]*)`")
IN_TEXT: Final = sorted(
    {
        (module, option)
        for page in PAGES
        for module, words in MODULE.findall(page.read_text("utf-8"))
        for option in ["", *re.findall(r"--[\w-]+", words)]
        if module.startswith("tests.")
    }
)


@pytest.mark.parametrize("module", sorted({module for module, _ in IN_TEXT}))
def test_every_program_that_is_named_has_the_options_that_are_named(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for _, option in (one for one in IN_TEXT if one[0] == module):
        assert option in done.stdout


# --- readers -------------------------------------------------------------------------------------


def read_ours(words: list[str]) -> None:
    """Options and values are read as the command reads them, and nothing is run."""
    whole = typer.Typer()
    whole.registered_commands += app.registered_commands
    whole.registered_groups += app.registered_groups
    # What typer builds its commands on is no part of its interface, so it has no name here.
    command: Any = typer.main.get_command(whole)
    context: Any = None
    name: str | None = "delayservice"
    rest = list(words)
    while hasattr(command, "resolve_command"):
        context = command.context_class(command, context, name)
        if rest[0].startswith("-"):
            assert any(rest[0] in option.opts for option in command.get_params(context))
            return
        name, command, rest = command.resolve_command(context, rest)
    command.make_context(name, rest, context)


def read_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE)


def read_compose(words: list[str]) -> None:
    if words[0] == "--profile":
        assert f"  profiles: [{words[1]}]\n" in COMPOSE
        words = words[2:]
    verb, *rest = words
    assert verb in {"run", "up", "down", "exec"}
    services = [word for word in rest if not word.startswith("-")][: verb in {"run", "exec"}]
    assert all(f"\n  {service}:\n" in COMPOSE for service in services)


def read_submit(words: list[str]) -> None:
    """What comes after the job is a command of ours; the connector is the one that we start."""
    job = next(number for number, word in enumerate(words) if word.endswith("job.py"))
    read_ours(["spark", *words[job + 1 :]])
    connector = (ROOT / "connectors/spark/common/session.py").read_text("utf-8")
    package = words[words.index("--packages") + 1]
    assert package in connector or package.rpartition(":")[0] in connector


def read_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name in re.findall(r"kafka_delay_service-[\w.-]+\.whl\[(\w+)\]", " ".join(words)):
        assert name in project["optional-dependencies"]


READERS: Final = {
    "delayservice": read_ours,
    "docker-compose": read_compose,
    "make": read_make,
    "pip": read_pip,
    "spark-submit": read_submit,
}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("dev drill --no-such", "No such option"),
        ("dev bench unheard-of", "unheard-of"),
        ("no-such-command", "No such command"),
        ("send --target-partition x", "valid integer"),
    ],
)
def test_a_command_that_we_have_not_can_not_be_read(line: str, why: str) -> None:
    with pytest.raises(TyperException, match=why):
        read_ours(line.split())
