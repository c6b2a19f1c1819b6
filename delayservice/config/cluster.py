"""The ``[zookeeper]`` and ``[placement]`` sections: how several nodes share the slices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from delayservice.config.secret_files import read_secret_text
from delayservice.config.units import DAY_MS, DurationMs, DurationS, ListText, Section

_SESSION_S_MAX = 60
_ACL_ID = r"^[^\s:]+(:[A-Za-z0-9+/]{27}=)?$"
_HOSTS = r"^$|^[^\s,/@]+:\d{1,5}(,[^\s,/@]+:\d{1,5})*$"


class ZooKeeper(Section):
    """The ensemble that elects the owner of each slice. Without one, this node owns every slice."""

    hosts: Annotated[str, Field(pattern=_HOSTS)] = Field(
        default="",
        description="`host:port,host:port,…` of the ensemble. Empty: one node, which owns all.",
    )
    root: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$")] = Field(
        default="/delayservice",
        description="Where the nodes of one cluster meet; the same on each of them.",
    )
    session_timeout_s: DurationS = Field(
        default=6,
        ge=1,
        le=_SESSION_S_MAX,
        description="A node that ZooKeeper has not heard of for so long has lost its slices. "
        "The ensemble may bound it: 2 to 20 of its ticks.",
    )
    auth: Literal["none", "digest", "sasl"] = Field(
        default="none",
        description="With digest and sasl, only this user may write what the nodes write.",
    )
    username: str = Field(default="", description="For digest and sasl.")
    password: SecretStr | None = Field(default=None, description="For digest and sasl.")
    password_file: Path | None = Field(
        default=None, description="File with the password, instead of the password itself."
    )
    accepted: Annotated[tuple[Annotated[str, Field(pattern=_ACL_ID)], ...], ListText] = Field(
        default=(),
        description="Others who may write what the nodes write, while the user or the password is "
        "replaced: names of users for sasl, `user:digest` for digest.",
    )
    tls: bool = Field(
        default=False, description="Encrypt, and check the server's certificate and host name."
    )
    tls_ca_file: Path | None = Field(
        default=None, description="Whom to trust besides the system's authorities, PEM."
    )
    tls_cert_file: Path | None = Field(default=None, description="This node's certificate, PEM.")
    tls_key_file: Path | None = Field(default=None, description="Its private key, PEM.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        has_password = self.password is not None or self.password_file is not None
        if self.password is not None and self.password_file is not None:
            raise ValueError("set password or password_file, not both")
        if self.auth != "none" and not (self.username and has_password):
            raise ValueError(f"auth = {self.auth!r} needs username and password")
        if self.auth == "none" and (self.username or has_password):
            raise ValueError("username and password need auth = 'digest' or 'sasl'")
        if self.auth == "none" and self.accepted:
            raise ValueError("accepted needs auth = 'digest' or 'sasl'")
        if any((":" in one) != (self.auth == "digest") for one in self.accepted):
            raise ValueError("accepted names users for sasl, and 'user:digest' for digest")
        if not self.tls and (self.tls_ca_file or self.tls_cert_file or self.tls_key_file):
            raise ValueError("tls_ca_file, tls_cert_file and tls_key_file need tls = true")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        return self

    def secret(self) -> str:
        """Give the password, read from its file if need be; empty when none is set.

        Raises:
            SettingsError: the file can't be read.
        """
        if self.password is not None:
            return self.password.get_secret_value()
        if self.password_file is None:
            return ""
        return read_secret_text("zookeeper.password_file", self.password_file)


class Placement(Section):
    """Which nodes keep a copy of a slice, and which of them is to own it."""

    replicas: Annotated[int, Field(ge=1, le=1000)] | Literal["all"] = Field(
        default="all", description="Nodes that keep a copy of each slice: `all`, or how many."
    )
    leader_stable_s: DurationS = Field(
        default=60,
        ge=0,
        le=3600,
        description="A slice follows its partition's leader once that has not moved for so long.",
    )
    claim_stagger_ms: DurationMs = Field(
        default=150,
        ge=0,
        le=10_000,
        description="A vacant slice is claimed by its preferred node at once, by the next one "
        "after this time, by the third after twice this time, and so on.",
    )
    lag_s_max: DurationS = Field(
        default=10,
        ge=1,
        le=3600,
        description="A replica that is this far behind the owner may not own the slice.",
    )
    away_ms: DurationMs = Field(
        default=600_000,
        ge=0,
        le=366 * DAY_MS,
        description="A node that is gone keeps its copies assigned for so long; then others build "
        "them. Only of interest when `replicas` is a number.",
    )
