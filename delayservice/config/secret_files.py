"""Reader of the files that hold secrets: the cluster secret, passwords, tokens."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from delayservice.base.errors import SettingsError


def read_secret_bytes(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise SettingsError(f"{setting} can't be read: {exc}") from exc


def read_secret_text(setting: str, given: SecretStr | None, path: Path | None) -> str | None:
    """Return a secret from its setting, or from its file, UTF-8 without white space around it;
    None: neither is set. ``setting``: names the file in error messages.
    """
    if given is not None:
        return given.get_secret_value()
    if path is None:
        return None
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{setting} can't be read: {exc}") from exc
