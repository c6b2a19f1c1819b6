"""Settings: where they come from, their bounds, and the topics that are no targets."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import resource
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr

from delayservice.base.errors import SettingsError
from delayservice.config.contract import allowlist_for, contract_for
from delayservice.config.reference import HIDDEN, effective, redacted, reference, secret_values
from delayservice.config.settings import Settings, load, load_with_origins, workers_default
from delayservice.config.units import format_duration
from delayservice.contract.contracts import Contract
from delayservice.contract.times import read_duration_ms
from delayservice.process.node import cluster_secret
from delayservice.slices.edges import limits_of

UNITS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
DIGITS = st.text("0123456789", max_size=15)
DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return path


def refused(*sets: str, environ: dict[str, str] | None = None, config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(config, sets, environ or {})
    return str(caught.value)


def test_set_overrides_environment_overrides_file_overrides_default(tmp_path: Path) -> None:
    config = write(tmp_path, "[node]\nworkers = 2\nbroker_id = 2\nnode_id = 'file'\n")
    environ = {"DELAYSERVICE_NODE__WORKERS": "3", "DELAYSERVICE_NODE__BROKER_ID": "3"}
    loaded = load_with_origins(config, ["node.workers=4"], environ)
    node = loaded.settings.node
    assert (node.workers, node.broker_id, node.node_id, node.store) == (4, 3, "file", "wheel")
    origins = {row.name: row.origin for row in effective(loaded)}
    assert origins["node.workers"] == "--set node.workers"
    assert origins["node.broker_id"] == "DELAYSERVICE_NODE__BROKER_ID"
    assert origins["node.node_id"] == "node.toml"
    assert origins["node.store"] == "default"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("node.workerz=1", "node.workers"),
        ("kafka.workers=1", "node.workers"),
        ("delivry.mode=x", "[delivery]"),
        ("delivery.max_delay=1y", "delivery.max_delay_ms"),
        ("targets.default.alow=x", "targets.default.allow"),
    ],
)
def test_an_unknown_name_is_an_error_that_says_what_was_meant(written: str, meant: str) -> None:
    text = refused(written)
    assert f"did you mean {meant}?" in text
    assert "--set" in text


def test_an_unknown_name_in_the_file_or_the_environment_names_its_place(tmp_path: Path) -> None:
    assert "(node.toml)" in refused(config=write(tmp_path, "[node]\nworkerz = 1\n"))
    assert "DELAYSERVICE_NODE__WORKERZ" in refused(environ={"DELAYSERVICE_NODE__WORKERZ": "1"})
    assert "no setting" in refused(config=write(tmp_path, "[nodes]\n"))


def test_one_underscore_too_few_is_noticed_and_foreign_variables_are_not() -> None:
    assert "DELAYSERVICE_NODE__WORKERS" in refused(environ={"DELAYSERVICE_NODE_WORKERS": "1"})
    load(None, [], {"DELAYSERVICE_PORT": "tcp://10.0.0.1:80", "DELAYSERVICE_FAULT": "x"})


@pytest.mark.parametrize(
    "written",
    [
        "node.workers=0",
        "node.workers=99",
        "node.cluster_secret=short",
        "topics.partitions=0",
        "topics.replication_factor=0",
        "topics.delay=..",
        "topics.checkpoint=delay_outcomes",
        "delivery.transaction_interval_ms_min=1s",
        "delivery.transaction_interval_ms_max=20001ms",
        "delivery.max_delay_ms=soon",
        "delivery.roll_window_ms=3h",
        "delivery.park_delays_ms=",
        "wheel.slots=1",
        "wheel.sync_bytes=1",
        "metrics.listen=localhost:99999",
        "log.level=loud",
        "kafka=x",
        "kafka.client=x",
        "node",
        "node.workers",
    ],
)
def test_settings_out_of_bounds_are_refused_at_the_start(written: str) -> None:
    assert refused(written)


def test_workers_that_could_not_commit_before_their_transactions_end_are_refused() -> None:
    few = "delivery.transactions_per_s_max=1"
    assert "shared by 21 workers" in refused(few, "node.workers=21")
    settings = load(None, [few, "node.workers=20"], {})
    assert limits_of(settings).transaction_interval_ms_max == 20_000


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("zookeeper.hosts=127.0.0.1:99999", "a port is 65535 at most"),
        ("zookeeper.hosts=a:2181;b:2181", "write host:port for each server, separated by commas"),
        ("zookeeper.hosts=a:2181,", "write host:port for each server"),
        ("zookeeper.hosts=a", "write host:port for each server"),
        ("zookeeper.root=delays", "write a path such as /delayservice"),
        ("kafka.bootstrap=a:9092,b:99999", "a port is 65535 at most"),
        ("kafka.bootstrap=a:9092;b:9092", "write host:port for each broker"),
        ("metrics.listen=9464", "write host:port, or nothing"),
        ("admin.hosts=a/b", "write a host's name or address, or *"),
        ("node.node_id=a b", "write 1 to 128 of the characters A-Z a-z 0-9 . _ -"),
        ("topics.delay=a b", "write 1 to 249 of the characters A-Z a-z 0-9 . _ -"),
        ("targets.default.allow=a+", "0-9 . _ - *?"),
    ],
)
def test_a_refused_text_is_answered_by_a_sentence(written: str, told: str) -> None:
    assert told in refused(written)


def test_no_setting_answers_with_a_regular_expression() -> None:
    def patterns(schema: object) -> Iterator[object]:
        below = schema.values() if isinstance(schema, dict) else schema
        if isinstance(schema, dict) and schema.get("type") == "string" and "pattern" in schema:
            yield schema
        for value in below if isinstance(below, Iterable) and not isinstance(below, str) else ():
            yield from patterns(value)

    assert list(patterns(Settings.model_json_schema())) == []


@pytest.mark.parametrize(
    "written",
    [
        "zookeeper.hosts=[::1]:2181,zk_1.example:2182",
        "kafka.bootstrap=PLAINTEXT://a:9092, b,[::1]:9093",
        "metrics.listen=[::]:0",
    ],
)
def test_addresses_may_be_names_or_of_both_versions(written: str) -> None:
    load(None, [written, "node.cluster_secret=only-for-this-test"], {})


def test_every_finding_is_one_line() -> None:
    assert len(refused("node.workers=0", "log.level=x", "wheel.slots=1").splitlines()) == 3


@pytest.mark.parametrize("table", ["client", "consumer", "producer", "admin"])
@pytest.mark.parametrize(
    "option",
    [
        "acks",
        "batch.size",
        "delivery.timeout.ms",
        "group.id",
        "isolation.level",
        "transactional.id",
    ],
)
def test_options_that_would_break_a_promise_are_refused(table: str, option: str) -> None:
    assert f"{option} can't be set" in refused(f"kafka.{table}.{option}=1")


def test_librdkafka_options_pass_through_from_all_three_places(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        '[kafka]\nbootstrap = "a:1"\n[kafka.client]\nsasl.password = "hunter22"\n'
        '"socket.keepalive.enable" = true\n',
    )
    environ = {"DELAYSERVICE_KAFKA__CLIENT__SASL_USERNAME": "me"}
    settings = load(config, ["kafka.producer.linger.ms=3", "kafka.consumer.x.y=1"], environ)
    assert settings.kafka.client_config("producer") == {
        "bootstrap.servers": "a:1",
        "sasl.password": "hunter22",
        "socket.keepalive.enable": "true",
        "sasl.username": "me",
        "linger.ms": "3",
    }


def test_no_secret_is_ever_shown(tmp_path: Path) -> None:
    secret = "hunter22-hunter22"  # noqa: S105 (an example)
    sets = [
        f"node.cluster_secret={secret}",
        f"kafka.client.sasl.password={secret}",
        f"kafka.client.ssl.key.pem={secret}",
        f"kafka.client.sasl.jaas.config={secret}",
        "kafka.client.ssl.key.location=/etc/key.pem",
        "zookeeper.auth=digest",
        "zookeeper.username=node",
        f"zookeeper.password={secret}",
        f"admin.tokens.sre.token={secret}",
        "rates.per_s.token-events=5",
    ]
    loaded = load_with_origins(None, sets, {})
    shown = repr(loaded.settings) + str(redacted(loaded.settings)) + str(effective(loaded))
    assert (
        secret not in shown + str(loaded.settings.model_dump()) + loaded.settings.model_dump_json()
    )
    assert redacted(loaded.settings)["kafka"]["client"]["sasl.password"] == HIDDEN
    assert redacted(loaded.settings)["kafka"]["client"]["ssl.key.location"] == "/etc/key.pem"
    assert redacted(loaded.settings)["rates"]["per_s"] == {"token-events": 5}
    assert secret_values(loaded.settings) == (secret,) * 6
    assert secret not in refused(*sets, f"kafka.client.acks={secret}")
    assert "s3cr3t-value" not in refused(
        config=write(tmp_path, "[kafka.client]\nsasl.password = ['s3cr3t-value']\n")
    )


def test_the_cluster_secret_comes_from_its_file_and_from_one_place_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    from_file = load(None, [f"node.cluster_secret_file={path}"], {}).node
    assert from_file.secret_bytes() == b"0123456789abcdef"
    assert load(None, [], {}).node.secret_bytes() is None
    assert "not both" in refused(
        f"node.cluster_secret_file={path}", "node.cluster_secret=0123456789abcdef"
    )
    path.write_text("short")
    with pytest.raises(SettingsError, match="of 5 bytes"):
        from_file.secret_bytes()


def test_a_secret_that_the_node_makes_is_whole_or_not_there(tmp_path: Path) -> None:
    settings = load(None, [f"node.state_dir={tmp_path}"], {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # as a disk that is full soon
    try:
        with pytest.raises(SettingsError, match=f"node.state_dir {tmp_path}"):
            cluster_secret(settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    secret = cluster_secret(settings)
    assert len(secret) >= 32
    assert cluster_secret(settings) == secret
    path = tmp_path / "cluster_secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(secret + b"\n")  # as an editor puts it back
    assert cluster_secret(settings) == secret
    path.write_bytes(b"")
    with pytest.raises(SettingsError, match="of 0 bytes"):
        cluster_secret(settings)


def test_further_secrets_are_accepted_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "accepted"
    path.write_text("0123456789abcdef\n\n fedcba9876543210 \n")
    node = load(None, [f"node.accepted_secrets_file={path}"], {}).node
    assert node.accepted_secrets() == (b"0123456789abcdef", b"fedcba9876543210")
    assert load(None, [], {}).node.accepted_secrets() == ()
    path.write_text("0123456789abcdef\nshort\n")
    with pytest.raises(SettingsError, match="of 5 bytes"):
        node.accepted_secrets()
    path.unlink()
    with pytest.raises(SettingsError, match="accepted_secrets_file can't be read"):
        node.accepted_secrets()


def test_targets_are_denied_unless_listed_and_a_topic_has_its_own_table() -> None:
    assert load(None, [], {}).targets_for("delay_topic_any").allow == ()
    settings = load(
        None, ["targets.default.allow=a", 'targets."delay_topic.1".allow=["b*","c"]'], {}
    )
    assert settings.targets_for("delay_topic_any").allow == ("a",)
    assert settings.targets_for("delay_topic.1").allow == ("b*", "c")


def test_the_roll_window_is_as_wide_as_the_wheel_unless_set() -> None:
    assert load(None, [], {}).roll_window_ms == 7_200_000
    assert load(None, ["delivery.roll_window_ms=1h"], {}).roll_window_ms == 3_600_000


def test_settings_cross_process_borders() -> None:
    settings = load(None, ["node.cluster_secret=0123456789abcdef"], {})
    copy = pickle.loads(pickle.dumps(settings))  # noqa: S301 (our own bytes)
    assert copy == settings
    assert isinstance(copy.node.cluster_secret, SecretStr)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "can't be read" in refused(config=tmp_path / "none.toml")
    assert "no valid TOML" in refused(config=write(tmp_path, "[node"))


@given(st.integers(min_value=0, max_value=10**13))
def test_a_formatted_duration_reads_back(ms: int) -> None:
    assert read_duration_ms(format_duration(ms)) == ms


@given(
    st.lists(
        st.tuples(st.integers(0, 999), DIGITS, st.sampled_from(list(UNITS))), min_size=1, max_size=4
    )
)
@example([(0, "0000008309234", "y")])
def test_a_duration_is_the_sum_of_its_rounded_parts(parts: list[tuple[int, str, str]]) -> None:
    text = "".join(f"{whole}{'.' if digits else ''}{digits}{unit}" for whole, digits, unit in parts)
    sums = [Decimal(f"{whole}.{digits or 0}") * UNITS[unit] for whole, digits, unit in parts]
    assert read_duration_ms(text) == sum(math.ceil(one) for one in sums)


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert read_duration_ms(text) == int(read_duration_ms(text))


def test_the_documentation_lists_every_setting() -> None:
    assert reference() in DOCS.read_text(), "run: delayservice config reference"


def test_there_is_a_worker_for_each_core_up_to_four() -> None:
    assert workers_default() == min(len(os.sched_getaffinity(0)), 4)
    assert load(None, [], {}).node.workers == workers_default()


# --- the service's own topics are never targets, whatever they are called and whatever is allowed -


OWN = ["checkpoint", "claims", "dead_letter", "outcomes", "digests", "repairs", "audit", "pauses"]
NAMED = Settings.model_validate(
    {"topics": {name: f"my_{name}" for name in OWN}, "targets": {"default": {"allow": ["*"]}}}
)


@pytest.mark.parametrize("name", OWN)
def test_every_own_topic_is_reserved(name: str) -> None:
    allowlist = allowlist_for(NAMED, "delay_topic_any")
    assert "reserved" in (allowlist.denial(f"my_{name}") or "")
    assert allowlist.denial("my_orders") is None


def test_the_claims_topic_is_reserved_under_its_default_name() -> None:
    settings = Settings.model_validate({"topics": {"checkpoint": "cursors"}})
    assert "reserved" in (allowlist_for(settings, "delay_topic_any").denial("cursors_claims") or "")


def test_the_list_above_is_complete() -> None:
    assert sorted(NAMED.topics.own) == sorted(f"my_{name}" for name in OWN)


RENAMED = Settings.model_validate(
    {
        "topics": {"delay": ["later", "much_later"], "pattern": "wait_*"},
        "levels": {"prefix": "pause_", "delays_ms": [5_000]},
        "targets": {"default": {"allow": ["*"]}},
    }
)


@pytest.mark.parametrize("topic", ["later", "much_later", "wait_anything", "pause_1"])
def test_no_delay_topic_is_a_target_whatever_its_name(topic: str) -> None:
    allowlist = allowlist_for(RENAMED, "later")
    assert "reserved" in (allowlist.denial(topic) or "")
    assert allowlist.denial("waiting") is None


def test_a_changed_allowlist_begins_no_contract() -> None:
    changed = {
        "topics": {"delay": ["later"], "pattern": "wait_*"},
        "targets": {"default": {"allow": ["orders"]}},
    }
    contracts = {
        contract_for(Settings.model_validate(given), "delay_topic_any") for given in ({}, changed)
    }
    assert contracts == {Contract(roll_spread_ms=Settings().roll_spread_ms)}


@pytest.mark.parametrize("name", ["delay_orders", "__consumer_offsets"])
def test_a_default_target_that_no_contract_takes_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=r"targets.default.default_target.* are no targets"):
        load(None, [f"targets.default.default_target={name}"], {})


def test_where_no_delay_topic_is_named_one_has_to_be() -> None:
    with pytest.raises(SettingsError, match=r"topics.delay is empty: name the delay topic"):
        _ = load(None, ["topics.delay="], {}).topics.first_delay


def test_a_default_target_is_allowed_without_a_pattern() -> None:
    given = {"targets": {"default": {"default_target": "orders"}}}
    allowlist = allowlist_for(Settings.model_validate(given), "delay_topic_any")
    assert allowlist.denial("orders") is None
    assert "not among the targets" in (allowlist.denial("others") or "")
