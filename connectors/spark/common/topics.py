"""Reads Kafka topics with Spark: only committed records, between fixed offsets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.common.frames import table
from delayservice.base.errors import DelayServiceError

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""
# Approximate largest number of records that one Spark task reads.
TASK_RECORDS: Final = 1_000_000
_TASKS_MIN: Final = 8

_FETCH: Final = {
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.bytes": "67108864",
    "kafka.max.partition.fetch.bytes": "16777216",
    "kafka.receive.buffer.bytes": "1048576",
}
# Options of Java's consumer that no setting changes: a batch whose bytes were altered ends the job,
# and a look-up creates no topic.
_ALWAYS: Final = {"check.crcs": "true", "allow.auto.create.topics": "false"}
_PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"
# Options of librdkafka with the same name and meaning in Java's client.
_SHARED: Final[Sequence[str]] = (
    "bootstrap.servers",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "sasl.kerberos.service.name",
    "sasl.oauthbearer.token.endpoint.url",
    "security.protocol",
    "ssl.key.password",
)
# Options of librdkafka that decide who may connect to whom. Each is translated, or refused; other
# options tune librdkafka, and are not passed on.
_SECURITY: Final = re.compile(r"(enable\.)?(ssl|sasl|https)[._]")
# Security options that say nothing at this value, librdkafka's default.
_DEFAULTS: Final = {
    "enable.sasl.oauthbearer.unsecure.jwt": "false",
    "enable.ssl.certificate.verification": "true",
    "sasl.oauthbearer.grant.type": "client_credentials",
    "sasl.oauthbearer.metadata.authentication.type": "none",
}
_JAAS: Final = "sasl.jaas.config"
_MECHANISM: Final = "sasl.mechanism"
_CHECK_HOST: Final = "ssl.endpoint.identification.algorithm"
_LOGINS: Final = {
    "PLAIN": _PLAIN_LOGIN,
    "SCRAM-SHA-256": _SCRAM_LOGIN,
    "SCRAM-SHA-512": _SCRAM_LOGIN,
}
# Options of Java's login for OpenID Connect, by librdkafka's names for them.
_OIDC: Final = {
    "sasl.oauthbearer.client.id": "clientId",
    "sasl.oauthbearer.client.credentials.client.id": "clientId",
    "sasl.oauthbearer.client.secret": "clientSecret",
    "sasl.oauthbearer.client.credentials.client.secret": "clientSecret",
    "sasl.oauthbearer.scope": "scope",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets ``[start, end)`` of one partition."""

    start: int
    end: int


def read_topic(
    spark: SparkSession,
    client: Mapping[str, str],
    spans: Mapping[Place, Span],
    tasks_min: int = _TASKS_MIN,
) -> DataFrame:
    """Return the committed records at the offsets ``spans``, in at least ``tasks_min`` tasks of
    about ``TASK_RECORDS`` records at most. Records that retention deletes meanwhile are left out.

    Returns:
        ``topic`` string, ``partition`` int, ``offset`` long, ``timestamp_ms`` long (epoch ms),
        ``key`` and ``value`` binary, ``headers`` array of ``{key: string, value: binary}``, null
        for a record without headers.
    """
    filled = {place: span for place, span in spans.items() if span.start < span.end}
    if not filled:
        return table(spark, ROW_SCHEMA)
    count = sum(span.end - span.start for span in filled.values())
    options = {
        **java_options(client),
        **_FETCH,
        "assign": _by_topic({place: place[1] for place in filled}, as_list=True),
        "startingOffsets": _by_topic({place: span.start for place, span in filled.items()}),
        "endingOffsets": _by_topic({place: span.end for place, span in filled.items()}),
        "minPartitions": str(max(tasks_min, count // TASK_RECORDS + 1)),
        "includeHeaders": "true",
        "failOnDataLoss": "false",  # retention may delete records meanwhile
    }
    return _as_rows(spark.read.format("kafka").options(**options).load())


ROW_SCHEMA: Final = (
    "topic string, partition int, offset long, timestamp_ms long, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
"""Columns of a record as ``read_topic`` returns it; times are epoch ms."""


def _as_rows(records: DataFrame) -> DataFrame:
    return records.select(
        "topic",
        "partition",
        "offset",
        sf.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        "value",
        "headers",
    )


def java_options(client: Mapping[str, str]) -> dict[str, str]:
    """Return options of librdkafka as options of Spark's Kafka source, with the prefix ``kafka.``.

    A user name and password, or OpenID Connect's client id and secret, become a login module. PEM
    files are passed by content, as executors lack the files. An option with the prefix ``java.`` is
    passed on without that prefix, and replaces a translated one. Options that do not concern
    security are dropped, as they tune librdkafka. Those in ``_ALWAYS`` override all.

    Raises:
        DelayServiceError: an option that concerns security can't be translated, and no ``java.``
            option takes its place; or a PEM file can't be read.
    """
    left = {n: v for n, v in native_options(client).items() if _DEFAULTS.get(n) != v}
    options = {name: left.pop(name) for name in _SHARED if name in left}
    options |= _take_login(left) | _take_tls(left)
    own = {n.removeprefix("java."): v for n, v in client.items() if n.startswith("java.")}
    for name in left:
        is_login = name.startswith("sasl.") and _JAAS in own
        if _SECURITY.match(name) and name not in own and not is_login:
            other = f", or the whole login as java.{_JAAS}" if name.startswith("sasl.") else ""
            raise DelayServiceError(
                f"{name} is not translated for Spark, whose Kafka client is Java's: give what it "
                f"means there as java.{name}{other}"
            )
    return {f"kafka.{name}": value for name, value in {**options, **own, **_ALWAYS}.items()}


def native_options(client: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in client.items() if not name.startswith("java.")}


def _take_login(left: dict[str, str]) -> dict[str, str]:
    # Options that are translated are taken out of ``left``.
    names = (_MECHANISM, "sasl.mechanisms")
    mechanism = next((given for name in names if (given := left.pop(name, ""))), "")
    if not mechanism and "sasl.username" in left:
        mechanism = "PLAIN"
    found = {_MECHANISM: mechanism} if mechanism else {}
    if mechanism in _LOGINS and "sasl.username" in left:
        user, password = left.pop("sasl.username"), left.pop("sasl.password", "")
        found[_JAAS] = _jaas(_LOGINS[mechanism], {"username": user, "password": password})
    elif mechanism == "OAUTHBEARER" and left.get("sasl.oauthbearer.method") == "oidc":
        del left["sasl.oauthbearer.method"]
        parts = {java: left.pop(name) for name, java in _OIDC.items() if name in left}
        for extension in filter(None, left.pop("sasl.oauthbearer.extensions", "").split(",")):
            name, _, value = extension.partition("=")
            parts[f"extension_{name}"] = value
        found[_JAAS] = _jaas(f"{_OAUTH}.OAuthBearerLoginModule", parts)
        found["sasl.login.callback.handler.class"] = f"{_OAUTH}.OAuthBearerLoginCallbackHandler"
    elif mechanism == "OAUTHBEARER":
        left[_MECHANISM] = mechanism  # the token comes from elsewhere, and Java has no login for it
    return found


def _jaas(module: str, parts: Mapping[str, str]) -> str:
    return f"{module} required {' '.join(f'{name}={_quoted(v)}' for name, v in parts.items())};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _take_tls(left: dict[str, str]) -> dict[str, str]:
    trusted, chain, key = (_take_pem(left, f"ssl.{name}") for name in ("ca", "certificate", "key"))
    found: dict[str, str] = {}
    if trusted:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    if chain:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain}
    if key:
        found["ssl.keystore.key"] = key
    if _CHECK_HOST in left:
        algorithm = left.pop(_CHECK_HOST)
        found[_CHECK_HOST] = "" if algorithm == "none" else algorithm
    return found


def _take_pem(left: dict[str, str], name: str) -> str | None:
    path, content = left.pop(f"{name}.location", None), left.pop(f"{name}.pem", None)
    return content if path is None else _content(path)


def _content(path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except OSError as exc:
        raise DelayServiceError(f"{path} can't be read ({exc}): Spark needs what is in it") from exc


def _by_topic(numbers: Mapping[Place, int], *, as_list: bool = False) -> str:
    # Spark's Kafka source expects {topic: {partition: offset}}, or {topic: [partition, …]}.
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), number in sorted(numbers.items()):
        found.setdefault(topic, {})[str(partition)] = number
    if as_list:
        return json.dumps({topic: sorted(held.values()) for topic, held in found.items()})
    return json.dumps(found)
