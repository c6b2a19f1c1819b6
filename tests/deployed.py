"""``docker-compose.yml`` as a structure, for the tests of it and for those that run it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from delayservice.cli import app
from delayservice.config.settings import Settings, load

ROOT = Path(__file__).parents[1]
LARGE = "docker-compose.yml"
SMALL = "deploy/docker-compose.small.yml"


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the file, anchors and merges resolved."""

    name: str
    facts: Mapping[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        """As the container gets it."""
        return {name: str(value) for name, value in self.facts.get("environment", {}).items()}

    @property
    def is_ours(self) -> bool:
        """Whether it runs the image of this repository."""
        return "build" in self.facts

    @property
    def command(self) -> list[str]:
        """As the container gets it: the file's ``$$`` is a dollar sign."""
        return [word.replace("$$", "$") for word in self.facts.get("command", [])]

    @property
    def settings(self) -> Settings:
        """What a node makes of the environment."""
        return load(None, [], self.environment)


def services(file: str = LARGE) -> dict[str, Service]:
    """All services by name."""
    composed = yaml.safe_load((ROOT / file).read_text("utf-8"))
    return {name: Service(name, facts) for name, facts in composed["services"].items()}


def nodes(file: str = LARGE) -> list[Service]:
    """Those that run a node."""
    return [one for one in services(file).values() if one.is_ours and one.command == ["run"]]


def parse(words: list[str]) -> None:
    """Let the command line read a call of ``delayservice`` without running it.

    Raises:
        TyperException: it can't be called so.
    """
    whole = typer.Typer()
    whole.registered_commands += app.registered_commands
    whole.registered_groups += app.registered_groups
    command = get_command(whole)
    context = command.make_context("delayservice", list(words))
    while isinstance(command, TyperGroup):
        left = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, left)
        assert found is not None, words
        command, context = found, found.make_context(name, rest, parent=context)


def seconds(text: str) -> float:
    """A duration as Compose and systemd write one."""
    match = re.fullmatch(r"(\d+)(s|m|)", str(text))
    assert match, text
    return float(match[1]) * (60 if match[2] == "m" else 1)
