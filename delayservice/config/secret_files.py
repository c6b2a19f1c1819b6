"""Reader of the files that hold secrets: the cluster secret, passwords, tokens."""

from __future__ import annotations

from pathlib import Path

from delayservice.base.errors import SettingsError


def read_secret_bytes(setting: str, path: Path) -> bytes:
    """Return the content of a secret file as it is.

    Raises:
        SettingsError: the file can't be read; the message names the setting.
    """
    try:
        return path.read_bytes()
    except OSError as exc:
        raise SettingsError(f"{setting} can't be read: {exc}") from exc


def read_secret_text(setting: str, path: Path) -> str:
    """Return the UTF-8 text of a secret file without the white space around it.

    Raises:
        SettingsError: the file can't be read or is not UTF-8; the message names the setting.
    """
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{setting} can't be read: {exc}") from exc
