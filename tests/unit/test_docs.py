"""The documentation: links resolve, names exist, and snippets are what the code takes."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delayservice.cli import app
from delayservice.config.settings import Settings, load
from delayservice.process.logs import HINTS
from tests.admin.described import openapi
from tests.docs.pages import DOCS

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS]
SECTIONS = {
    section: getattr(info.annotation, "model_fields", {})
    for section, info in Settings.model_fields.items()
}

LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([\w-]+)">')

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def snippets(page: Path, language: str) -> list[str]:
    return [text for name, text in FENCE.findall(page.read_text("utf-8")) if name == language]


def anchors(page: Path) -> set[str]:
    """Headings as the usual renderers name them, and anchors that are written out."""
    text = prose(page)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(text)
    } | set(ANCHOR.findall(text))


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in anchors(file), f"{target}: no such heading"


@every_page
def test_every_file_that_is_named_exists(page: Path) -> None:
    folders = "delayservice|connectors|ha|tests|docs|requirements"
    for name in CODE.findall(prose(page)):
        if re.fullmatch(rf"({folders})/[\w./-]*", name):
            assert (ROOT / name).exists(), name


@every_page
def test_every_toml_snippet_is_a_configuration(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(snippets(page, "toml")):
        tomllib.loads(text)
        config = tmp_path / f"{number}.toml"
        config.write_text(text, "utf-8")
        load(config, [], {})


@pytest.mark.parametrize("name", ["example", "cluster"])
def test_the_example_configuration_loads(name: str) -> None:
    load(ROOT / "deploy" / f"delayservice.{name}.toml", [], {})


@every_page
def test_every_setting_that_is_named_exists(page: Path) -> None:
    for name in CODE.findall(prose(page)):
        found = re.match(r"(\w+)\.(\w+)(?: = .*)?$", name)
        if found is None or found[1] not in SECTIONS or found[1] in ("kafka", "targets"):
            continue
        if found[2] in ("md", "py", "toml", "txt", "svg"):
            continue
        assert found[2] in SECTIONS[found[1]], name


def commands(page: Path) -> Iterator[list[str]]:
    """Words of every call of the command line in shell snippets and in the prose."""
    lines = [line for text in snippets(page, "sh") for line in text.splitlines()]
    for line in (*lines, *CODE.findall(prose(page))):
        words = line.partition(" #")[0].split()
        if words[:1] == ["delayservice"] and len(words) > 1:
            yield words[1:]


@every_page
def test_every_command_that_is_named_exists_with_its_options(page: Path) -> None:
    groups = [group.name for group in app.registered_groups]
    for words in commands(page):
        path = [word for word in words[: 2 if words[0] in groups else 1] if word[0] != "-"]
        done = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
        assert done.exit_code == 0, f"delayservice {' '.join(words)}"
        for option in (
            word.partition("=")[0] for word in words if re.match(r"-[a-zA-Z]|--\w", word)
        ):
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", done.output), f"{path}: {option}"


@every_page
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lines = [line for text in snippets(page, "sh") for line in text.splitlines()]
    for line in (*lines, *CODE.findall(prose(page))):
        found = re.match(r"make ([a-z-]+)", line)
        if found is not None:
            assert re.search(rf"^{found[1]}:", makefile, re.MULTILINE), line


def warnings_without_hint(tree: ast.Module) -> Iterator[str]:
    """Events of warnings and errors whose call gives no hint."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = ast.unparse(node.func).rpartition(".")
        is_log = name[0] == "_log" and name[2] in ("warning", "error", "exception")
        first = node.args[0]
        has_hint = any(keyword.arg == "hint" for keyword in node.keywords)
        if is_log and not has_hint and isinstance(first, ast.Constant):
            yield str(first.value)


def test_every_warning_and_error_event_has_a_hint() -> None:
    found = {
        event
        for package in ("delayservice", "connectors", "ha")
        for file in (ROOT / package).rglob("*.py")
        for event in warnings_without_hint(ast.parse(file.read_text("utf-8")))
    }
    assert len(found) > 30
    assert found - set(HINTS) == set(), "delayservice/process/log_hints.toml lacks these events"


def log_events() -> Iterator[str]:
    for package in ("delayservice", "connectors", "ha"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="_log")),
                        args=[ast.Constant(value=str(event)), *_],
                    ):
                        yield event


def test_every_explained_event_exists() -> None:
    assert set(HINTS) <= set(log_events())


def test_the_events_of_the_operations_page_exist() -> None:
    events = set(log_events())
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
    """The rules' table says which deliberate mistake each rule's test must catch."""
    mutations = (ROOT / "tests" / "simulation" / "mutations.py").read_text("utf-8")
    rules = [
        line
        for line in (ROOT / "docs" / "internals" / "design.md").read_text("utf-8").splitlines()
        if re.match(r"\| \d+ \|", line)
    ]
    assert len(rules) == 15
    for line in rules:
        for name in CODE.findall(line.split("|")[4]):
            if "/" not in name:
                assert f"def {name}(" in mutations, name


@every_page
def test_no_page_names_a_folder_of_one_machine(page: Path) -> None:
    assert not re.search(r"/(work|root|home)/", page.read_text("utf-8"))
