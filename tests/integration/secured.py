"""A real broker with TLS, SCRAM and ACLs, and users with the rights that docs/security.md lists.

What is trusted speaks to its plain listener and is a super user there: the brokers themselves, and
tests as the administrator. Users speak to the second listener only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import SECURE_HOST
from tests.integration.bench import Bench, await_true
from tests.integration.tls_front import make_authority, make_certificate

PAGE: Final = Path(__file__).parents[2] / "docs" / "security.md"
PASSWORD: Final = "s3cr3t-Pa55word"  # noqa: S105  # must never be seen anywhere
_MECHANISM: Final = "SCRAM-SHA-512"
_LISTENER: Final = "listener.name.secure"
_WAIT_S: Final = 30

_KINDS: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS: Final = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Alter": AclOperation.ALTER,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


class Right(NamedTuple):
    """One ACL of the page; a name that ends with ``*`` is a prefix."""

    kind: str
    name: str
    operation: str

    def __str__(self) -> str:
        """As a test's id."""
        return f"{self.operation} on {self.kind} {self.name}"


def rights_of(heading: str) -> list[Right]:
    """What docs/security.md lists below a heading."""
    page = PAGE.read_text("utf-8")
    _, _, section = page.partition(f"\n### {heading}\n")
    assert section, f"docs/security.md has no {heading!r}"
    rows = re.findall(
        r"^\| ([a-z-]+) \| (`[^|]+`) \| ([A-Za-z, ]+) \|", section.split("\n#")[0], re.MULTILINE
    )
    return [
        Right(kind, name, word)
        for kind, names, words in rows
        for name in re.findall(r"`([^`]+)`", names)
        for word in words.split(", ")
    ]


@contextmanager
def secure_cluster(folder: Path) -> Iterator[SecureCluster]:
    """A broker whose second listener takes SCRAM over TLS, with a certificate for its name."""
    authority = make_authority(folder)
    keystore = make_certificate(folder, SECURE_HOST)
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "false",
        f"{_LISTENER}.sasl.enabled.mechanisms": _MECHANISM,
        f"{_LISTENER}.{_MECHANISM.lower()}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        f"{_LISTENER}.ssl.keystore.type": "PEM",
        f"{_LISTENER}.ssl.keystore.location": str(keystore),
    }
    with EmbeddedCluster(zookeepers=0, broker_properties=properties, secure=True) as cluster:
        yield SecureCluster(cluster, authority)


def named(bench: Bench, rights: Iterable[Right]) -> list[Right]:
    """The page's rights with the names that a bench has."""
    names = {
        "delay_topic_*": f"delay_topic_{bench.run}*",
        "delay_topic_any": bench.any,
        "delay_checkpoint": bench.checkpoint,
        "delay_checkpoint_claims": bench.claims,
        "delay_dead_letter": bench.dead_letter,
        "delay_outcomes": bench.outcomes,
        "delay_digests": bench.digests,
        "delay_repairs": bench.repairs,
        "delay_audit": bench.audit,
        "delay_pauses": bench.pauses,
        "orders*": bench.target_name("*"),
        "delayservice-*": f"tx-{bench.run}-*",
        "delayservice-dlq-replay": f"tx-{bench.run}-dlq-replay",
    }
    return [right._replace(name=names.get(right.name, right.name)) for right in rights]


class SecureCluster:
    """The cluster as its administrator has it."""

    def __init__(self, cluster: EmbeddedCluster, authority: Path) -> None:
        self.bootstrap = cluster.bootstrap
        self.secure_bootstrap = cluster.secure_bootstrap
        self.authority = authority
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def client(self, user: str, password: str = PASSWORD) -> dict[str, str]:
        """A user's options of librdkafka."""
        return {
            "bootstrap.servers": self.secure_bootstrap,
            "broker.address.family": "v4",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": _MECHANISM,
            "sasl.username": user,
            "sasl.password": password,
        }

    def settings(self, user: str, password: str = PASSWORD) -> list[str]:
        """The same as settings of the service."""
        options = self.client(user, password)
        bootstrap = options.pop("bootstrap.servers")
        return [
            f"kafka.bootstrap={bootstrap}",
            *(f"kafka.client.{name}={value}" for name, value in options.items()),
        ]

    def add_user(self, user: str) -> None:
        """A user with ``PASSWORD`` and no rights."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        asked = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
        self._admin.alter_user_scram_credentials([asked])[user].result(_WAIT_S)

    def grant(self, user: str, rights: Iterable[Right]) -> None:
        """Give a user rights, and wait until the broker goes by them: the controller answers first.

        The broker learns of changes in their order, so it knows the user by then too.
        """
        wanted = {_binding(user, right) for right in rights}
        for answer in self._admin.create_acls(list(wanted)).values():
            answer.result(_WAIT_S)
        await_true(lambda: wanted <= self._rights(user), f"the rights of {user} at the broker")

    def revoke(self, user: str) -> None:
        """Take all rights from a user, and wait until the broker goes by that."""
        for answer in self._admin.delete_acls([_all_of(user)]).values():
            answer.result(_WAIT_S)
        await_true(lambda: not self._rights(user), f"no right of {user} at the broker")

    def _rights(self, user: str) -> set[AclBinding]:
        return set(self._admin.describe_acls(_all_of(user)).result(_WAIT_S))


def _all_of(user: str) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]  # any
        ResourcePatternType.ANY,
        f"User:{user}",
        None,  # type: ignore[arg-type]  # any
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def _binding(user: str, right: Right) -> AclBinding:
    is_prefix = right.name.endswith("*")
    return AclBinding(
        _KINDS[right.kind],
        right.name.removesuffix("*"),
        ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        _OPERATIONS[right.operation],
        AclPermissionType.ALLOW,
    )
