"""The ``[kafka]`` section: options that are passed on to librdkafka.

Options that would break a guarantee of the service are refused. Values whose names look like
secrets are wrapped, so that neither ``repr`` nor a dump of the settings shows them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, SecretStr

from delayservice.base.errors import SettingsError
from delayservice.base.tokens import TOKEN_PROVIDER
from delayservice.config.units import Brokers, Section, matching, names_of

ClientRole: TypeAlias = Literal["consumer", "producer", "admin"]
OptionValue: TypeAlias = str | int | float | bool | SecretStr

_SECRET = re.compile(
    r"password|secret|key|token|\bpem\b|credential|jaas|oauthbearer\.config", re.IGNORECASE
)
_ONLY_A_PLACE = re.compile(r"(_file|\.location|\.url|\.method|\.claim\.name)$", re.IGNORECASE)

_ONCE = "a record must be settled exactly once"
_SERVICE_CURSOR = "the service keeps its own cursor in the checkpoint topic"

# librdkafka options that can't be set, each with the reason for the error message.
RESERVED: Mapping[str, str] = {
    "bootstrap.servers": "set kafka.bootstrap instead",
    "metadata.broker.list": "set kafka.bootstrap instead",
    "group.id": _SERVICE_CURSOR,
    "group.instance.id": _SERVICE_CURSOR,
    "group.protocol": _SERVICE_CURSOR,
    "enable.auto.commit": _SERVICE_CURSOR,
    "auto.commit.enable": _SERVICE_CURSOR,
    "enable.auto.offset.store": _SERVICE_CURSOR,
    "auto.offset.reset": "a lost offset is reported and never skipped",
    "isolation.level": "the service chooses it for each read: checkpoints are read committed",
    "enable.partition.eof": "the service relies on it to know the end of a partition",
    "check.crcs": "a record that was altered on a disk must not be delivered, so it is always on",
    "allow.auto.create.topics": "a misspelt or deleted topic must not be created by a look-up",
    "transaction.timeout.ms": "it bounds how long a dead owner's transaction holds up consumers",
    "message.timeout.ms": "it has to fit the transaction's timeout",
    "delivery.timeout.ms": "it has to fit the transaction's timeout",
    "batch.size": "the service compares it with the limits of targets",
    "log.connection.close": "it would hide failed connections, after which a writer has to end",
    "connections.max.idle.ms": "the client would close connections without a line in its log",
    "transactional.id": "it fences the owner of a slice; see kafka.transactional_id_prefix",
    "enable.idempotence": f"{_ONCE}, so it is always on",
    "enable.gapless.guarantee": _ONCE,
    "acks": f"{_ONCE}, so it is always all",
    "request.required.acks": f"{_ONCE}, so it is always all",
    "delivery.report.only.error": "the service needs every failed delivery and no other report",
    "partitioner": "set delivery.partitioner instead",
    "partitioner_cb": "set delivery.partitioner instead",
    "on_delivery": "callbacks belong to the service",
    "dr_cb": "callbacks belong to the service",
    "dr_msg_cb": "callbacks belong to the service",
    "error_cb": "callbacks belong to the service",
    "stats_cb": "callbacks belong to the service",
    "throttle_cb": "callbacks belong to the service",
    "oauth_cb": "set kafka.token_provider instead",
    "logger": "logs belong to the service; set log.level",
    "log_cb": "logs belong to the service; set log.level",
}


def is_secret_name(name: str) -> bool:
    # The path of a secret's file is not secret.
    return bool(_SECRET.search(name)) and not _ONLY_A_PLACE.search(name)


def _text(value: OptionValue) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _guard(options: dict[str, OptionValue]) -> dict[str, OptionValue]:
    for name in options:
        reason = RESERVED.get(name)
        if reason is not None:
            raise ValueError(f"{name} can't be set: {reason}")
    return {
        name: SecretStr(_text(value)) if is_secret_name(name) else value
        for name, value in options.items()
    }


Options: TypeAlias = Annotated[dict[str, OptionValue], AfterValidator(_guard), Field(repr=False)]


class Kafka(Section):
    """Connection to Kafka."""

    bootstrap: Brokers = ""
    """Brokers: `host:port`, separated by commas. Required."""
    transactional_id_prefix: Annotated[str, names_of(1, 128)] = "delayservice"
    """Prefix of each worker's `transactional.id`. Change it only while all nodes are stopped."""
    token_provider: Annotated[
        str, matching(r"(?:[\w.]+:\w+)?", "write module:function, or nothing")
    ] = ""
    """`module:function` of Python that makes tokens of OAUTHBEARER: from the text of
    `sasl.oauthbearer.config` to the token and its end in epoch seconds.
    """
    client: Options = Field(default={})
    """librdkafka options of every client."""
    consumer: Options = Field(default={})
    """Options of consumers; they override `client`."""
    producer: Options = Field(default={})
    """Options of producers."""
    admin: Options = Field(default={})
    """Options of admin clients."""

    def client_config(self, role: ClientRole) -> dict[str, str]:
        if not self.bootstrap:
            raise SettingsError(
                "kafka.bootstrap is not set: name a broker in the file, with "
                "--set kafka.bootstrap=HOST:PORT or in DELAYSERVICE_KAFKA__BOOTSTRAP"
            )
        own: dict[str, OptionValue] = getattr(self, role)
        options = {**self.client, **own}
        texts = {name: _text(value) for name, value in options.items()}
        if self.token_provider:
            texts[TOKEN_PROVIDER] = self.token_provider
        return {"bootstrap.servers": self.bootstrap, **texts}
