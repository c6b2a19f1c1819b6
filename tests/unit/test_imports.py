"""Imports point one way: core knows nothing, and only the entry points know everyone."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = "kafka_delay_client"
OURS = ("delayservice", "connectors", "ha", CLIENT)
ROOTS = {CLIENT: ROOT / "client"}

# Small modules that everyone but core may use, and that know only each other.
LEAVES = frozenset(
    f"delayservice.{name}"
    for name in [
        "admin_options",
        "client_options",
        "clock",
        "cluster_options",
        "digest_options",
        "errors",
        "faults",
        "flow_options",
        "level_options",
        "logs",
        "metrics",
        "settings",
        "settings_layers",
        "settings_report",
        "units",
    ]
)

# Who may import what of ours, by prefix; a module that is not below any of these may import all.
MAY_KNOW: dict[str, frozenset[str]] = {
    "delayservice.core": frozenset({"delayservice.core", "delayservice.errors"}),
    "delayservice.store": LEAVES | {"delayservice.core", "delayservice.store"},
    "delayservice.lanes": LEAVES
    | {"delayservice.core", "delayservice.store", "delayservice.lanes"},
    # An entry point as the command line is: a cluster starts it instead.
    "connectors.spark.job": frozenset({"delayservice.commands.spark"}),
    # Offline sources read the stores' files. First, for the first that fits counts.
    "connectors.spark": LEAVES | {"delayservice.core", "delayservice.store", "connectors"},
    # The client under its former name.
    "connectors.kafka.client": frozenset({CLIENT}),
    # lanes.ports holds the interfaces that the connectors fill.
    "connectors": LEAVES | {"delayservice.core", "delayservice.lanes.ports", "connectors"},
    "ha": LEAVES | {"delayservice.core", "ha"},
    # Its wheel carries what it imports (client/setup.py), so that is to be little.
    CLIENT: frozenset(
        {"delayservice.core", "delayservice.errors", "connectors.kafka.outcomes", CLIENT}
    ),
    # The presets, the marks, what metrics carry, and how durations are read.
    **dict.fromkeys(
        LEAVES,
        LEAVES
        | {
            f"delayservice.core.{name}"
            for name in ("levels", "disk", "census", "outcome", "times", "codes")
        },
    ),
}
CORE_FOREIGN = frozenset({"msgspec", "murmurhash2", "xxhash"})
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
    if layer is None:
        return
    ours = [name for name in imports_of(path) if name.split(".")[0] in OURS]
    # The bare package holds nothing but its docstring.
    wrong = [n for n in ours if n not in OURS and not is_below(n, MAY_KNOW[layer])]
    assert not wrong, f"{module_name(path)} is in layer {layer} and must not import {wrong}"


@pytest.mark.parametrize(
    "path", [p for p in MODULES if layer_of(module_name(p)) == "delayservice.core"], ids=module_name
)
def test_core_uses_only_the_standard_library_and_does_no_io(path: Path) -> None:
    foreign = {name.split(".")[0] for name in imports_of(path)} - set(OURS)
    unknown = foreign - CORE_FOREIGN - sys.stdlib_module_names
    assert not unknown, f"core may use {set(CORE_FOREIGN)} beside the standard library"
    assert not foreign & CORE_FORBIDDEN, "core is handed time, files and chance from outside"


def test_nothing_but_the_entry_points_knows_the_development_tools() -> None:
    entry_points = frozenset({"delayservice.cli", "delayservice.commands", "delayservice.dev"})
    development = frozenset({"delayservice.dev"})
    for path in MODULES:
        if not is_below(module_name(path), entry_points):
            assert not [name for name in imports_of(path) if is_below(name, development)], path
