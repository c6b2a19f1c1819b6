"""Means to put a mistake into the real code for a while."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any, TypeAlias
from unittest.mock import patch

Mutation: TypeAlias = Callable[[], AbstractContextManager[Any]]


def mistakes_in(module: ModuleType) -> list[Mutation]:
    """Every public function that is defined there, in their order."""
    made = [one for name, one in vars(module).items() if not name.startswith("_")]
    return [one for one in made if getattr(one, "__module__", "") == module.__name__]


def replaced(owner: object, name: str, wrong: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Put ``wrong(original, self, …)`` in the place of a method, or of a module's function."""
    original = getattr(owner, name)

    def mutant(self: object, *args: object, **kwargs: object) -> object:
        return wrong(original, self, *args, **kwargs)

    return patch.object(owner, name, mutant)


def mistake(owner: object, name: str) -> Callable[[Callable[..., Any]], Mutation]:
    """Make ``wrong(original, self, …)`` a patch that puts it in the place of a method."""

    def made(wrong: Callable[..., Any]) -> Mutation:
        return wraps(wrong)(lambda: replaced(owner, name, wrong))

    return made


@contextmanager
def together(*contexts: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def rewritten(owner: Any, name: str, right: str, wrong: str) -> AbstractContextManager[Any]:
    """Put other words in the place of some that stand once in a function."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(right) != 1:
        raise AssertionError(f"{right!r} stands {source.count(right)} times in {name}")
    made: dict[str, Any] = {}
    code = "from __future__ import annotations\n" + source.replace(right, wrong)
    exec(code, vars(sys.modules[function.__module__]), made)  # noqa: S102  # the service's own code
    return patch.object(owner, name, made[name])
