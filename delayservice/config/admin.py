"""Settings ``[admin]`` of the admin API and the web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, SecretStr, model_validator

from delayservice.base.errors import SettingsError
from delayservice.config.units import Listen, ListText, Section, matching, read_secret_text

TOKEN_CHARS_MIN: Final = 16
_LOOPBACK: Final = ("127.", "[::1]:", "localhost:")


def made_token_path(state_dir: Path) -> Path:
    return state_dir / "admin_token"


HostName = Annotated[
    str,
    matching(r"\*|[A-Za-z0-9._:\[\]-]{1,253}", "write a host's name or address, or * for any"),
]


class Admin(Section):
    """HTTP server of the admin API and the web page."""

    listen: Listen = "127.0.0.1:9465"
    """`host:port` of the API and the page. Port 0: any free port. Empty: off."""
    token: SecretStr | None = None
    """Password for changes; 16 characters at least. Default: a random one in the file `admin_token`
    of the state folder.
    """
    token_file: Path | None = None
    """File that holds `token`."""
    reads: Literal["auto", "open", "token"] = "auto"
    """Who may read: everyone, or who sends the token as password of any user. `auto`: open on a
    loopback address, else token.
    """
    hosts: Annotated[tuple[HostName, ...], ListText] = Field(default=(), max_length=100)
    """Further host names of the page, besides `localhost`, loopback and the one in `listen`. `*`:
    any.
    """

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if self.token is not None and self.token_file is not None:
            raise ValueError("set token or token_file, not both")
        if self.token is not None and len(self.token.get_secret_value()) < TOKEN_CHARS_MIN:
            raise ValueError(f"the token needs {TOKEN_CHARS_MIN} characters at least")
        return self

    @property
    def are_reads_open(self) -> bool:
        if self.reads == "auto":
            return self.listen.startswith(_LOOPBACK)
        return self.reads == "open"

    def configured_token(self) -> str | None:
        token = read_secret_text("admin.token_file", self.token, self.token_file)
        if token is not None and len(token) < TOKEN_CHARS_MIN:
            raise SettingsError(
                f"{self.token_file} holds {len(token)} characters; "
                f"the token needs {TOKEN_CHARS_MIN} at least"
            )
        return token
