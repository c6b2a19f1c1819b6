"""The documentation: links resolve, names exist, and snippets are what the code takes."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.exceptions import TyperException
from typer.testing import CliRunner

from delayservice.cli import app
from delayservice.config.settings import Settings, load
from delayservice.process.logs import HINTS
from tests.admin.described import openapi
from tests.deployed import parse, services
from tests.docs.pages import DOCS, FENCE, PAGES, ROOT, Block, Command, bare, blocks, commands
from tests.docs.tables import (
    ASKS,
    BEFORE,
    LONG,
    NOT_TYPED,
    PYTHON_NOT_RUN,
    SERVERS,
    SMALLER,
    STATUSES,
    is_listed,
)

SECTIONS = {
    section: getattr(info.annotation, "model_fields", {})
    for section, info in Settings.model_fields.items()
}
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([\w-]+)">')
TYPED = [bare(one.text) for one in commands()]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """Headings as the usual renderers name them, and anchors that are written out."""
    text = prose(page)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(text)
    } | set(ANCHOR.findall(text))


@every_page
def test_every_link_and_every_file_that_is_named_leads_somewhere(page: Path) -> None:
    for target in (target for target in LINK.findall(prose(page)) if "://" not in target):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"
    folders = "delayservice|connectors|ha|tests|docs|requirements"
    for name in CODE.findall(prose(page)):
        if re.fullmatch(rf"({folders})/[\w./-]*", name):
            assert (ROOT / name).exists(), name
    assert not re.search(r"/(work|root|home)/", page.read_text("utf-8")), "a folder of one machine"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_the_index_leads_to_every_page(page: Path) -> None:
    # Pages of ``docs/internals`` are listed there, and that list in ``docs/README.md``.
    top, index = ROOT / "docs" / "README.md", page.parent / "README.md"
    within = index if page != index else top
    path = page.relative_to(within.parent)
    assert page == top or f"({path})" in within.read_text("utf-8")


# --- snippets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block", [one for one in blocks() if one.language != "sh"], ids=lambda block: block.place
)
def test_every_snippet_is_in_its_language(block: Block, tmp_path: Path) -> None:
    match block.language:
        case "toml":
            (tmp_path / "node.toml").write_text(block.text, "utf-8")
            load(tmp_path / "node.toml", [], {})
        case "json":
            json.loads(block.text)
        case "python":
            compile(block.text, block.place, "exec")
        case other:  # a shell block under another name would be typed by nobody
            assert other in {"java", "go", "mermaid", "text", "yaml", ""}


@pytest.mark.parametrize("name", ["example", "cluster"])
def test_the_example_configuration_loads(name: str) -> None:
    load(ROOT / "deploy" / f"delayservice.{name}.toml", [], {})


def test_every_row_of_the_tables_is_of_use() -> None:
    for begins in (*NOT_TYPED, *LONG, *SMALLER, *SERVERS, *ASKS, *STATUSES):
        assert any(line.startswith(begins) for line in TYPED), begins
    for begins in PYTHON_NOT_RUN:
        assert any(block.text.startswith(begins) for block in blocks("python")), begins
    assert set(BEFORE) <= {one.page for one in commands()}


@pytest.mark.parametrize(
    "command",
    [one for one in commands() if is_listed(one)],
    ids=lambda one: f"{one.place} {one.text[:40]}",
)
def test_commands_that_are_not_run_can_be_parsed(command: Command) -> None:
    program, *words = shlex.split(bare(command.text))
    match program:
        case "delayservice" if not words[0].startswith("--"):
            parse(words)
        case "docker-compose" if words[0] in {"run", "exec"}:
            assert any(word in services() for word in words)
        case "spark-submit":
            job = next(number for number, word in enumerate(words) if word.endswith("job.py"))
            parse(["spark", *words[job + 1 :]])
    for word in words:
        path = word.rpartition("=")[2]
        if path.startswith(("deploy/", "requirements/", "connectors/")):
            assert (ROOT / path).exists(), f"{command.place}: there is no {path}"


def test_a_command_that_does_not_exist_can_not_be_parsed() -> None:
    for line in ("dev drill --no-such", "no-such-command", "send --target-partition x"):
        with pytest.raises(TyperException):
            parse(line.split())


# --- names in the text ---------------------------------------------------------------------------


@every_page
def test_every_setting_that_is_named_exists(page: Path) -> None:
    for name in CODE.findall(prose(page)):
        found = re.match(r"(\w+)\.(\w+)(?: = .*)?$", name)
        if found is None or found[1] not in SECTIONS or found[1] in ("kafka", "targets"):
            continue
        if found[2] not in ("md", "py", "toml", "txt", "svg"):
            assert found[2] in SECTIONS[found[1]], name


@cache
def help_of(*path: str) -> str:
    done = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
    assert done.exit_code == 0, f"delayservice {' '.join(path)}"
    return done.output


@every_page
def test_every_command_that_is_named_exists_with_its_options(page: Path) -> None:
    groups = [group.name for group in app.registered_groups]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    shell = [bare(one.text) for one in commands(str(page.relative_to(ROOT)))]
    for line in map(str, [*shell, *CODE.findall(prose(page))]):
        match line.partition(" #")[0].split():
            case ["make", target, *_] if re.fullmatch("[a-z-]+", target):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), line
            case ["delayservice", first, *rest]:
                path = [first, *rest[: first in groups]]
                help_text = help_of(*(word for word in path if not word.startswith("-")))
                for option in (word.partition("=")[0] for word in (first, *rest)):
                    if re.match(r"-[a-zA-Z]|--\w", option):
                        assert re.search(rf"(?<![\w-]){option}(?![\w-])", help_text), line


def log_calls() -> Iterator[tuple[str, str, bool]]:
    """Method and event of every line that is logged, and whether it has a hint of its own."""
    for package in ("delayservice", "connectors", "ha"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="_log"), attr=method),
                        args=[ast.Constant(value=str(event)), *_],
                        keywords=keywords,
                    ):
                        yield method, event, any(one.arg == "hint" for one in keywords)


def test_every_warning_has_a_hint_and_every_explained_event_exists() -> None:
    calls = list(log_calls())
    events = {event for _, event, _ in calls}
    loud = {"warning", "error", "exception"}
    warned = {event for method, event, has_hint in calls if method in loud and not has_hint}
    assert len(warned) > 30
    assert warned - set(HINTS) == set(), "delayservice/process/log_hints.toml lacks these events"
    assert set(HINTS) <= events
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    section = page.partition("\n## Log events\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows
    for row in rows:
        assert set(CODE.findall(row.split("|")[1])) <= events, row


def test_every_path_of_the_api_is_on_its_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert openapi()["paths"]
    for path in openapi()["paths"]:
        name = re.sub(r"{(\w+)}", lambda part: part[1].upper(), path)
        assert f"{name}`" in page or f"{name}?" in page, name


def test_every_mutation_that_the_design_names_exists() -> None:
    # The rules' table says which deliberate mistake each rule's test must catch.
    mutations = (ROOT / "tests" / "simulation" / "mutations.py").read_text("utf-8")
    design = (ROOT / "docs" / "internals" / "design.md").read_text("utf-8")
    rules = [line for line in design.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rules) == 15
    for name in (name for line in rules for name in CODE.findall(line.split("|")[4])):
        assert "/" in name or f"def {name}(" in mutations, name
