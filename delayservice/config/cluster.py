"""The ``[zookeeper]`` and ``[placement]`` sections: how several nodes share the slices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, SecretStr, model_validator

from delayservice.config.units import (
    DAY_MS,
    DurationMs,
    DurationS,
    ListText,
    Section,
    Servers,
    matching,
    read_secret_text,
)

_SESSION_S_MAX = 60
_AclId: TypeAlias = Annotated[
    str,
    matching(
        r"[^\s:]+(:[A-Za-z0-9+/]{27}=)?",
        "write a user's name for sasl, and user:digest for digest (28 characters of base64)",
    ),
]


class ZooKeeper(Section):
    """The ensemble in which nodes elect the owner of each slice."""

    hosts: Servers = ""
    """Servers: `host:port`, separated by commas. Empty: this node runs alone and owns every slice.
    """
    root: Annotated[
        str, matching(r"(/[A-Za-z0-9._-]+)+", "write a path such as /delayservice or /team/delays")
    ] = "/delayservice"
    """Path of this cluster; the same on every node."""
    session_timeout_s: DurationS = Field(default=6, ge=1, le=_SESSION_S_MAX)
    """Seconds without contact after which a node loses its slices. Smaller: faster take-over, more
    false alarms. ZooKeeper bounds it to 2 to 20 ticks.
    """
    auth: Literal["none", "digest", "sasl"] = "none"
    """Login. With `none`, everyone may change the cluster's data, else only `username`."""
    username: str = ""
    """User of the login."""
    password: SecretStr | None = None
    """Password of `username`."""
    password_file: Path | None = None
    """File that holds `password`."""
    accepted: Annotated[tuple[_AclId, ...], ListText] = ()
    """Further users with write access, while user or password are replaced: names for `sasl`,
    `user:digest` for `digest`.
    """
    tls: bool = False
    """Encrypt, and verify the server's certificate and host name."""
    tls_ca_file: Path | None = None
    """PEM file of trusted authorities. Unset: those of the system."""
    tls_cert_file: Path | None = None
    """PEM file of this node's certificate. Unset: no client certificate."""
    tls_key_file: Path | None = None
    """PEM file of its private key."""

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
        setting = "zookeeper.password_file"
        return read_secret_text(setting, self.password, self.password_file) or ""


class Placement(Section):
    """Choice of the nodes that keep a slice, and of its owner."""

    replicas: Annotated[int, Field(ge=1, le=1000)] | Literal["all"] = "all"
    """Nodes that keep a copy of each slice."""
    leader_stable_s: DurationS = Field(default=60, ge=0, le=3600)
    """Seconds for which a partition must keep its leader before the slice moves to that broker's
    node, and for which a slice stays with the node that took it over after a crash. Larger: fewer
    moves.
    """
    claim_stagger_ms: DurationMs = Field(default=150, ge=0, le=10_000)
    """Delay between candidates for a slice without an owner: the first claims it at once, the
    second after this time, and so on.
    """
    lag_s_max: DurationS = Field(default=10, ge=1, le=3600)
    """Seconds that a replica may be behind and still become owner."""
    away_ms: DurationMs = Field(default=600_000, ge=0, le=366 * DAY_MS)
    """Time after which the copies of a node that is gone are built elsewhere; not if `replicas` is
    `all`.
    """
