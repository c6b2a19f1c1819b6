"""Build the client's wheel: the package, and copies of the service's modules that it imports.

The modules of the header contract belong to the service, and in this repository the client imports
them from there. The wheel carries exactly the modules that these imports reach, as the subpackage
``kafka_delay_client._service`` with renamed imports. So the client does not need the service, and
if both are installed, each keeps the version of the contract that it was built with.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from setuptools import setup
from setuptools.command.build_py import build_py

HERE: Final = Path(__file__).resolve().parent
PACKAGE: Final = "kafka_delay_client"
CARRIED: Final = f"{PACKAGE}._service"
SERVICE: Final = ("delayservice", "connectors", "ha")
DOCSTRING: Final = (
    '"""Modules of the service that the client needs, as they were when it was built."""\n'
)


class BuildWithContract(build_py):  # type: ignore[misc]  # setuptools ships no types
    """Build step that adds the service's modules, unless the install is editable."""

    def run(self) -> None:
        """Build the package, and add the service's modules unless the install is editable."""
        super().run()
        if not self.editable_mode:
            add_carried(Path(self.build_lib, PACKAGE))


def add_carried(package: Path) -> None:
    """Copy the service's modules that a built package imports into its folder ``package``, and
    rename the imports of these modules in the package and in the copies.

    Raises:
        ValueError: two modules have the same last name, or an import can't be renamed.
    """
    own = {path: path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
    carried = carried_modules(own.values())
    folder = package / CARRIED.rpartition(".")[2]
    folder.mkdir()
    (folder / "__init__.py").write_text(DOCSTRING, "utf-8")
    copies = {folder / f"{_last(name)}.py": text for name, text in carried.items()}
    if len(copies) < len(carried):
        raise ValueError(f"two of the modules that are carried have one name: {sorted(carried)}")
    for path, text in (own | copies).items():
        path.write_text(renamed(text), "utf-8")


def carried_modules(texts: Iterable[str]) -> dict[str, str]:
    """Return the source texts, by module name, of the service's modules that the source texts
    ``texts`` import, directly or through each other.
    """
    found: dict[str, str] = {}
    wanted = {name for text in texts for name in service_modules(text)}
    while wanted:
        name = wanted.pop()
        found[name] = _path(name).read_text("utf-8")
        wanted |= service_modules(found[name]) - found.keys()
    return dict(sorted(found.items()))


def service_modules(text: str) -> set[str]:
    """Return the names of the service's modules that a source text imports."""
    return {name for _, names in _imports(text) for name in names}


def renamed(text: str) -> str:
    """Return a source text with the imports of the service's modules renamed to their copies.

    Raises:
        ValueError: an import can't be renamed.
    """
    lines = text.splitlines(keepends=True)
    for node, names in _imports(text):
        # `from package.module import name`, or `from package import module`.
        place = f"{CARRIED}.{_last(str(node.module))}" if node.module in names else CARRIED
        was, line = f"from {node.module} import", lines[node.lineno - 1]
        lines[node.lineno - 1] = line.replace(was, f"from {place} import", 1)
    result = "".join(lines)
    if service_modules(result):
        raise ValueError(f"an import of the service could not be renamed in:\n{result}")
    return result


def _imports(text: str) -> Iterator[tuple[ast.ImportFrom, set[str]]]:
    """Yield each import statement of service modules in a source text, and the names of these
    modules. Raise ``ValueError`` for an ``import`` without ``from``.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import) and any(_is_service(one.name) for one in node.names):
            raise ValueError(f"line {node.lineno}: write `from … import …`, which can be renamed")
        if isinstance(node, ast.ImportFrom) and _is_service(node.module or ""):
            module = str(node.module)
            names = {f"{module}.{one.name}" for one in node.names}
            yield node, {module} if _path(module).is_file() else names


def _is_service(module: str) -> bool:
    return module.partition(".")[0] in SERVICE


def _path(module: str) -> Path:
    return HERE.parent.joinpath(*module.split(".")).with_suffix(".py")


def _last(module: str) -> str:
    return module.rpartition(".")[2]


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildWithContract})
