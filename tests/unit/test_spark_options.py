"""Options of librdkafka as Java's client has them: each that concerns security, or none is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.spark.common.topics import java_options
from delayservice.base.errors import DelayServiceError

OAUTH = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "audit",
    "sasl.oauthbearer.client.secret": 's"1',
    "sasl.oauthbearer.scope": "kafka",
    "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,poolId=p=2",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
    "sasl.oauthbearer.grant.type": "client_credentials",
}


def test_a_password_becomes_a_login_module() -> None:
    options = java_options(
        {
            "bootstrap.servers": "b:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "audit",
            "sasl.password": 'a"b\\',
            "fetch.wait.max.ms": "5",
            "java.ssl.endpoint.identification.algorithm": "",
        }
    )
    assert options["kafka.sasl.jaas.config"].endswith(
        'ScramLoginModule required username="audit" password="a\\"b\\\\";'
    )
    assert options["kafka.bootstrap.servers"] == "b:1"
    assert options["kafka.ssl.endpoint.identification.algorithm"] == ""
    assert "kafka.fetch.wait.max.ms" not in options
    assert "kafka.sasl.password" not in options


def test_openid_connect_becomes_a_login_module() -> None:
    options = java_options(OAUTH)
    assert options["kafka.sasl.mechanism"] == "OAUTHBEARER"
    assert options["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://login.example/token"
    assert options["kafka.sasl.login.callback.handler.class"].endswith(
        "oauthbearer.OAuthBearerLoginCallbackHandler"
    )
    assert options["kafka.sasl.jaas.config"].endswith(
        'OAuthBearerLoginModule required clientId="audit" clientSecret="s\\"1" scope="kafka" '
        'extension_logicalCluster="lkc-1" extension_poolId="p=2";'
    )


@pytest.mark.parametrize(("given", "java"), [("none", ""), ("https", "https")])
def test_whether_the_name_of_a_broker_is_checked_is_passed_on(given: str, java: str) -> None:
    options = java_options({"ssl.endpoint.identification.algorithm": given})
    assert options["kafka.ssl.endpoint.identification.algorithm"] == java


def test_certificates_are_passed_by_content(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("an authority", "ascii")
    options = java_options(
        {
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.certificate.pem": "a certificate",
            "ssl.key.pem": "a key",
        }
    )
    assert options["kafka.ssl.truststore.certificates"] == "an authority"
    assert options["kafka.ssl.keystore.certificate.chain"] == "a certificate"
    assert options["kafka.ssl.keystore.key"] == "a key"


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ({"sasl.mechanism": "GSSAPI", "sasl.username": "a"}, "sasl.username"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism"),
        ({**OAUTH, "sasl.oauthbearer.grant.type": "x"}, "sasl.oauthbearer.grant.type"),
        ({"sasl.kerberos.keytab": "/a.keytab"}, "sasl.kerberos.keytab"),
        ({"ssl.cipher.suites": "AES"}, "ssl.cipher.suites"),
        (
            {"enable.ssl.certificate.verification": "false"},
            "enable.ssl.certificate.verification",
        ),
    ],
)
def test_options_unknown_to_java_are_refused_without_an_own_option(
    client: dict[str, str], name: str
) -> None:
    with pytest.raises(DelayServiceError, match=f"{name} is not .* java.{name}"):
        java_options(client)
    assert java_options({**client, f"java.{name}": "x"})[f"kafka.{name}"] == "x"
    if name.startswith("sasl."):
        assert java_options({**client, "java.sasl.jaas.config": "x"})


def test_an_option_at_its_default_needs_no_translation() -> None:
    assert "kafka.enable.ssl.certificate.verification" not in java_options(
        {"enable.ssl.certificate.verification": "true"}
    )
