"""The store that the settings ask for."""

from __future__ import annotations

from pathlib import Path

from delayservice.settings import Settings
from delayservice.store.base import Store
from delayservice.store.memory import MemoryStore


def open_store(settings: Settings, folder: Path) -> Store:
    """A store in ``folder``, not opened yet; made with its parents when it is new."""
    return MemoryStore()
