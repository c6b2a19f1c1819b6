"""Settings ``[admin]`` of the admin API and the web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, SecretStr, model_validator

from delayservice.base.errors import SettingsError
from delayservice.config.units import (
    Listen,
    ListText,
    Section,
    matching,
    names_of,
    read_secret_text,
)

TOKEN_CHARS_MIN: Final = 16
_LOOPBACK: Final = ("127.", "[::1]:", "localhost:")


def made_token_path(state_dir: Path) -> Path:
    return state_dir / "admin_token"


HostName = Annotated[
    str,
    matching(r"\*|[A-Za-z0-9._:\[\]-]{1,253}", "write a host's name or address, or * for any"),
]


class NamedToken(NamedTuple):
    name: str
    secret: str
    may_change: bool


def is_sendable(token: str) -> bool:
    # A header takes nothing else.
    return token.isascii() and token.isprintable()


class Token(Section):
    """One token of the admin API."""

    token: SecretStr | None = None
    token_file: Path | None = None
    may: Literal["change", "read"] = "change"

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if (self.token is None) == (self.token_file is None):
            raise ValueError("set token or token_file, one of the two")
        if self.token is not None and len(self.token.get_secret_value()) < TOKEN_CHARS_MIN:
            raise ValueError(f"the token needs {TOKEN_CHARS_MIN} characters at least")
        return self


class Admin(Section):
    """HTTP server of the admin API and the web page."""

    listen: Listen = "127.0.0.1:9465"
    """`host:port` of the API and the page. Port 0: any free port. Empty: off."""
    tokens: dict[Annotated[str, names_of(1, 64)], Token] = Field(default={}, max_length=100)
    """Passwords, by the names that the log shows: `token` (16 characters at least) or `token_file`,
    and `may`: `change` (default) or `read`. If none may change, the node makes `admin`, in the file
    `admin_token` of the state folder.
    """
    reads: Literal["auto", "open", "token"] = "auto"
    """Who may read: everyone, or who sends a token as password of any user. `auto`: open on a
    loopback address, if each token may change.
    """
    certificate_file: Path | None = None
    """PEM file for TLS: the server's certificate, then those that it was signed with. Read again
    when it changes.
    """
    key_file: Path | None = None
    """PEM file with the certificate's private key, without a password."""
    hosts: Annotated[tuple[HostName, ...], ListText] = Field(default=(), max_length=100)
    """Further host names of the page, besides `localhost`, loopback and the one in `listen`. `*`:
    any.
    """

    @model_validator(mode="after")
    def _whole_certificate(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("set certificate_file and key_file, or neither")
        return self

    @property
    def certificate_files(self) -> tuple[Path, Path] | None:
        if self.certificate_file is None or self.key_file is None:
            return None
        return self.certificate_file, self.key_file

    @property
    def are_reads_open(self) -> bool:
        if self.reads == "auto":
            has_readers = any(token.may == "read" for token in self.tokens.values())
            return self.listen.startswith(_LOOPBACK) and not has_readers
        return self.reads == "open"

    def configured_tokens(self) -> list[NamedToken]:
        found: list[NamedToken] = []
        for name, one in self.tokens.items():
            setting = f"admin.tokens.{name}.token_file"
            secret = read_secret_text(setting, one.token, one.token_file) or ""
            if len(secret) < TOKEN_CHARS_MIN:
                raise SettingsError(
                    f"{one.token_file} ({setting}) holds {len(secret)} characters; "
                    f"a token needs {TOKEN_CHARS_MIN} at least"
                )
            if not is_sendable(secret):
                raise SettingsError(f"{setting}: a token has printable ASCII characters only")
            found.append(NamedToken(name, secret, one.may == "change"))
        names = {token.secret: token.name for token in reversed(found)}
        for token in found:
            # The rights of one would be those of the other.
            if names[token.secret] != token.name:
                raise SettingsError(
                    f"admin.tokens: {names[token.secret]} and {token.name} have the same token; "
                    "give each its own"
                )
        return found
