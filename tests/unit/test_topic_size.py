"""Warnings at the start, of topics that are too small for their cluster."""

from __future__ import annotations

from connectors.kafka.topic_configs import too_small


def test_topics_with_fewer_copies_than_brokers_can_keep_are_told() -> None:
    copies = {"delay_topic_any": 1, "delay_checkpoint": 1, "delay_outcomes": 2, "other": 3}
    few, fewer = too_small(copies, (), 4, 5)
    assert few.startswith("delay_checkpoint, delay_topic_any: 1 of 3 copies that 5 brokers")
    assert fewer.startswith("delay_outcomes: 2 of 3 copies")


def test_no_cluster_is_asked_for_more_copies_than_it_has_brokers() -> None:
    assert list(too_small({"delay_topic_any": 1}, (), 4, 1)) == []
    assert len(list(too_small({"delay_topic_any": 1}, (), 4, 2))) == 1


def test_few_partitions_are_told_when_they_are_made_and_not_later() -> None:
    (told,) = too_small({"delay_topic_any": 3}, ["delay_topic_any"], 4, 6)
    assert "created with 4 partitions on 6 brokers" in told
    assert list(too_small({"delay_topic_any": 3}, (), 4, 6)) == []
    assert list(too_small({"delay_topic_any": 3}, ["delay_topic_any"], 6, 6)) == []
