"""Imports point one way: the contract knows nothing, and only the processes know everyone."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = "connectors.kafka.client"
DEVTOOLS = "delay_devtools"
OURS = ("delayservice", "connectors", "ha", DEVTOOLS)
ROOTS = {DEVTOOLS: ROOT / "devtools"}

BASE = frozenset({"delayservice.base"})
CONTRACT = BASE | {"delayservice.contract"}
ENGINE = CONTRACT | {"delayservice.engine", "delayservice.replicas"}
CONFIG = ENGINE | {"delayservice.config"}

# Who may import what of ours, by prefix; the first prefix that fits counts.
MAY_KNOW: dict[str, frozenset[str]] = {
    "delayservice.base": BASE,
    "delayservice.contract": CONTRACT,
    # Pure decisions. The formats of digests and of repair commands are a package of their own.
    "delayservice.engine": CONTRACT | {"delayservice.engine"},
    "delayservice.replicas": ENGINE,
    "delayservice.store": ENGINE | {"delayservice.store"},
    "delayservice.slices": CONFIG | {"delayservice.store", "delayservice.slices"},
    "delayservice.inspection": ENGINE
    | {"delayservice.store", "delayservice.slices", "delayservice.inspection", "ha.members"},
    "delayservice.config": CONFIG,
    "delayservice.metrics": CONFIG | {"delayservice.metrics", "delayservice.inspection.query"},
    "delayservice.smoke": BASE | {"delayservice.smoke"},
    # Offline sources read the stores' files.
    "connectors.spark": CONFIG | {"delayservice.store", "connectors"},
    # Public, and used where nothing of a node is installed.
    CLIENT: CONTRACT | {"connectors.kafka.clients", "connectors.kafka.outcomes", CLIENT},
    # engine.ports holds the interfaces that the connectors fill.
    "connectors": CONFIG | {"delayservice.metrics", "delayservice.inspection.query", "connectors"},
    "ha": CONFIG | {"ha"},
    # The rest: process, commands and cli.
    "delayservice": frozenset({"delayservice", "connectors", "ha"}),
}
PURE = frozenset({"delayservice.contract", "delayservice.engine", "delayservice.replicas"})
CORE_FOREIGN = frozenset({"cronsim", "msgspec", "murmurhash2", "xxhash"})
BASE_FOREIGN = frozenset({"confluent_kafka", "cronsim", "msgspec", "murmurhash2"})
# A clock, a file, a socket, a thread or chance: what the core must be handed, and never take.
CORE_FORBIDDEN = frozenset(
    [
        "asyncio",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "shutil",
        "socket",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
    ]
)


def module_name(path: Path) -> str:
    root = ROOTS.get(path.relative_to(ROOT).parts[1], ROOT)
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def exists(name: str) -> bool:
    first, *rest = name.split(".")
    path = ROOTS.get(first, ROOT).joinpath(first, *rest)
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or within a function."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; name the package"
            for alias in node.names:
                # `from package import module` and `from module import name` look alike.
                full = f"{node.module}.{alias.name}"
                yield full if full.startswith(OURS) and exists(full) else str(node.module)


def is_below(name: str, prefixes: frozenset[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def layer_of(name: str) -> str | None:
    return next((layer for layer in MAY_KNOW if is_below(name, frozenset({layer}))), None)


MODULES = sorted(
    path for package in OURS for path in ROOTS.get(package, ROOT).joinpath(package).rglob("*.py")
)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_module_imports_only_what_its_layer_may_know(path: Path) -> None:
    layer = layer_of(module_name(path))
    known = frozenset(OURS) if layer is None else MAY_KNOW[layer]
    ours = [name for name in imports_of(path) if name.split(".")[0] in OURS]
    # The bare package holds nothing but its docstring.
    wrong = [n for n in ours if n not in OURS and not is_below(n, known)]
    assert not wrong, f"{module_name(path)} is in layer {layer} and must not import {wrong}"


@pytest.mark.parametrize(
    "path", [p for p in MODULES if layer_of(module_name(p)) in PURE], ids=module_name
)
def test_pure_packages_use_only_the_standard_library_and_do_no_io(path: Path) -> None:
    foreign = {name.split(".")[0] for name in imports_of(path)} - set(OURS)
    unknown = foreign - CORE_FOREIGN - sys.stdlib_module_names
    assert not unknown, f"core may use {set(CORE_FOREIGN)} beside the standard library"
    assert not foreign & CORE_FORBIDDEN, "core is handed time, files and chance from outside"


def test_the_client_needs_only_what_the_distribution_without_extras_brings() -> None:
    paths = {module_name(path): path for path in MODULES}
    wanted = {name for name in paths if is_below(name, frozenset({CLIENT}))}
    reached: set[str] = set()
    foreign: set[str] = set()
    while wanted:
        reached |= wanted
        imported = {one for name in wanted for one in imports_of(paths[name])}
        foreign |= {one.split(".")[0] for one in imported} - set(OURS)
        wanted = imported & paths.keys() - reached
    assert foreign - sys.stdlib_module_names == BASE_FOREIGN


def test_no_two_packages_import_each_other() -> None:
    # Packages of the service: a new module finds its place by who may know whom.
    knows: dict[str, set[str]] = {}
    for path in MODULES:
        own = package_of(module_name(path))
        knows.setdefault(own, set()).update(
            package_of(name) for name in imports_of(path) if name.split(".")[0] in OURS
        )
    assert not {
        (one, other)
        for one, known in knows.items()
        for other in known
        if one < other and one in knows.get(other, ())
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        module_name(path): [name for name in imports_of(path) if name.split(".")[0] in OURS]
        for path in MODULES
    }
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as exc:
        pytest.fail(f"a circle of imports: {exc.args[1]}")


def package_of(name: str) -> str:
    first, *rest = name.split(".")
    return ".".join([first, *rest[:1]]) if first in {"delayservice", "connectors"} else first
