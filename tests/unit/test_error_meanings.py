"""Each error that a broker may answer to a transaction's requests has one meaning."""

from __future__ import annotations

from confluent_kafka import KafkaError

from connectors.kafka.errors import MEANINGS, Meaning, meaning_of

OF_OTHER_REQUESTS = (
    {-1, 0, 1, 11, 12, 22, 23, 24, 25, 26, 27, 28, 30, 33, 34, 35, 36, 37, 38, 39, 41, 42, 50, 54}
    | {*range(57, 59), *range(60, 74), *range(77, 87), 88, *range(91, 98)}
    | {*range(110, 120), *range(121, 134)}
)
"""Codes that Kafka 4.3 answers to none of Produce, AddPartitionsToTxn and EndTxn: those of groups,
fetches, administration, connections and the controller (``common.protocol.Errors`` and the error
lists of the three requests' schemas)."""


def test_each_code_that_the_client_knows_has_a_meaning_or_belongs_to_other_requests() -> None:
    codes = {
        code
        for name in dir(KafkaError)
        if name.isupper() and isinstance(code := getattr(KafkaError, name), int) and code >= -1
    }
    assert len(codes) > 110
    answered = {code for code in MEANINGS if code >= 0}
    assert answered & OF_OTHER_REQUESTS == set()
    assert codes - answered == OF_OTHER_REQUESTS, "a new code of the client needs a meaning"


def test_an_error_without_a_meaning_is_put_down_to_the_topic_and_not_to_the_writer() -> None:
    assert meaning_of(KafkaError(KafkaError.UNKNOWN)) is Meaning.UNSUITED
