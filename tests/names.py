"""Every name that machines read, collected from the code: ``python -m tests.names`` prints them.

A consumer, a dashboard, a script or another version of a node depends on each of them. So
``tests/unit/test_names.py`` compares them with ``tests/unit/headers.json``.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast, get_args

import click
import typer
from pydantic import BaseModel

import connectors.kafka.client
from connectors.spark import audit
from connectors.spark.reconcile import compare, repair_plan
from delayservice.cli import app
from delayservice.config.settings import Settings
from delayservice.contract import codes, contracts, home, names, requeue
from delayservice.engine import checkpoint, claims
from delayservice.engine.outcome import OUTCOME_NAMES
from delayservice.replicas import digest_rows
from delayservice.store.wheel import block
from tests.admin.described import openapi

ROOT: Final = Path(__file__).parents[1]
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception"})


def collect() -> dict[str, list[str]]:
    """Return all names by kind, each sorted."""
    found: dict[str, Iterable[str]] = {
        "headers": _texts_of(names),
        "topics": _topics(),
        "dead-letter codes": _texts_of(codes),
        "outcomes": OUTCOME_NAMES,
        "format versions": _versions(),
        "settings": _settings(Settings, ""),
        "environment": _literals("DELAYSERVICE_"),
        "metrics": _metrics(),
        "log events": _log_events(),
        "commands and options": _commands(),
        "exit statuses": _exit_statuses(),
        "admin routes and keys": _admin(),
        "ZooKeeper nodes": _zookeeper_nodes(),
        "Python imports": [
            *(f"connectors.kafka.client.{name}" for name in connectors.kafka.client.__all__),
            *(f"connectors.spark.audit.{name}" for name in audit.__all__),
            "connectors.spark.reconcile.compare.compare",
            "connectors.spark.reconcile.store_source.StoreSource",
        ],
    }
    return {kind: sorted(set(texts)) for kind, texts in found.items()}


def _texts_of(module: object) -> list[str]:
    """Return the constants of a module that are texts of the wire."""
    return [
        value
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str)
    ]


def _topics() -> Iterator[str]:
    topics = Settings.model_fields["topics"].annotation
    for name, field in cast("type[BaseModel]", topics).model_fields.items():
        if isinstance(field.default, str) and field.default:
            yield f"{name} {field.default}"


def _versions() -> list[str]:
    return [
        f"checkpoint {checkpoint.VERSION}",
        f"claim {claims.VERSION}",
        f"contract {contracts.CONTRACT_VERSION}",
        f"copy {requeue.COPY_VERSION}",
        f"digest row {digest_rows.VERSION}",
        f"envelope {home.ENVELOPE_VERSION}",
        f"findings of copies {compare.FINDINGS_VERSION}",
        f"repair plan {repair_plan.VERSION}",
        f"wheel {block.VERSION}",
    ]


def _settings(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        inner = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
        yield f"{prefix}{name}"
        for one in inner:
            yield from _settings(one, f"{prefix}{name}.")


def _trees(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text("utf-8"))


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _literals(prefix: str) -> Iterator[str]:
    for _, tree in _trees("delayservice", "connectors", "ha"):
        yield from (
            text for text in _strings(tree) if text.startswith(prefix) and text.strip("_").isupper()
        )


def _metrics() -> Iterator[str]:
    tree = ast.parse((ROOT / "delayservice" / "metrics" / "families.py").read_text("utf-8"))
    return (text for text in _strings(tree) if text.startswith("delay_") and text.isidentifier())


def _log_events() -> Iterator[str]:
    for _, tree in _trees("delayservice", "connectors", "ha"):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            logger, first = node.func.value, node.args[0] if node.args else None
            is_log = isinstance(logger, ast.Name) and logger.id == "_log"
            logs = is_log and node.func.attr in _LEVELS
            if logs and isinstance(first, ast.Constant):
                yield str(first.value)


def _commands() -> Iterator[str]:
    def walk(command: Any, path: str) -> Iterator[str]:  # click or its fork
        yield path
        for one in command.params:
            yield from (f"{path} {text}" for text in one.opts if text.startswith("--"))
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{path} {name}")

    return walk(cast("click.Command", typer.main.get_command(app)), "delayservice")


def _exit_statuses() -> Iterator[str]:
    for path, tree in _trees("delayservice", "connectors"):
        for node in tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if not isinstance(target, ast.Name) or not target.id.startswith("EXIT_"):
                continue
            if isinstance(node.value, ast.Constant):
                yield f"{path.stem} {target.id} {node.value.value!r}"


def _admin() -> Iterator[str]:
    schema = openapi()
    for path, operations in schema["paths"].items():
        yield from (f"{method.upper()} {path}" for method in operations)
    for name, model in schema["components"]["schemas"].items():
        yield from (f"{name}.{key}" for key in model.get("properties", {}))


def _zookeeper_nodes() -> Iterator[str]:
    tree = ast.parse((ROOT / "ha" / "ensemble.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "path":
            yield "/".join(
                str(one.value) if isinstance(one, ast.Constant) else "*" for one in node.args
            )


if __name__ == "__main__":
    argparse.ArgumentParser(description="Print every name that machines read.").parse_args()
    json.dump(collect(), sys.stdout, indent=1)
    sys.stdout.write("\n")
