"""Sentences that explain log events: what an event means, or what to do about it.

``logs.configure`` adds them as ``hint`` to lines that carry no hint of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HINTS: Final[Mapping[str, str]] = {
    "acknowledged_may_be_lost": (
        "records that Kafka acknowledged may be lost, or a transaction may stay open for ever; "
        "problems on this line names each setting to change"
    ),
    "admin_right_missing": "the admin API lacks a right on one of these topics; delivery goes on",
    "answer_not_written": "this node could not answer a repair order; the order is sent again",
    "audit_topic_not_read": "metrics lack the newest audit until the topic can be read",
    "broker_not_asked_for_the_time": "the clocks are compared again at the next attempt",
    "brokers_answer": "these brokers answer again",
    "catching_up": "left is the number of source records that are not stored yet",
    "caught_up": "all source records of the slice are stored",
    "checkpoint_misplaced": (
        "place is not the partition of this slice: were partitions added to the checkpoint topic, "
        "or does another program write to it?"
    ),
    "checkpoint_tail_failed": "the worker process ends and is replaced; report the traceback",
    "checkpoints_not_read": "reading starts again; take-overs wait meanwhile",
    "claim_not_readable": (
        "with a key of the service it counts as a claim, else it is ignored; let only the delay "
        "service write to that topic"
    ),
    "claimed": "slices are those won in ZooKeeper, lost those that another worker claimed first",
    "clock_in_doubt": "delivery stops until this machine's clock is right",
    "command_done": "a repair order for this copy is done",
    "command_failed": (
        "a repair order for this copy failed; the copy is as before. Remove the cause that why "
        "names, and send the order again"
    ),
    "consumers_renewed": (
        "the former consumers had outdated leaders of a topic, from which they got no records"
    ),
    "contract_extended": (
        "new settings apply to records from from_offset on; if few records come, a restart of the "
        "owner applies them earlier"
    ),
    "control_record_not_taken": "a record of this topic can't be read; the topic counts as failed",
    "control_topics_event": (
        "a message of the Kafka client while reading the service's own topics; it connects again "
        "by itself"
    ),
    "digest_not_written": "comparisons of copies lack this digest until the next one",
    "disk_fills_up": "free or add disk space; from stop_percent on, nothing more is stored",
    "disk_full": "above disk.full_percent the stores are no longer synced; free or add disk space",
    "disk_not_seen": "the use of the disk can't be read; the last known value is used",
    "ensemble_not_reached": "ZooKeeper did not answer; tried again",
    "fetch_error": "a read from Kafka failed; tried again",
    "foreign_checkpoint": "the record is ignored; let only the delay service write to that topic",
    "handed_over": "this worker no longer delivers the slice; its cursor is committed",
    "handing_over": "the owner entry names the next owner (to), which prepares to take over",
    "ids_damaged": "the store of this shard is rebuilt from Kafka",
    "header_names_not_checked": (
        "this build of confluent-kafka is not known to the service: header names are cut at a zero "
        "byte, and such records are not refused; install the version that the service names"
    ),
    "kafka_found": "Kafka answers again",
    "leaders_not_seen": "the leaders of partitions are not known; asked again",
    "log_damaged": (
        "a batch of records was altered on a broker's disk; none of it is delivered, and nothing "
        "behind it in this partition is read: follow DelayAlarm in docs/operations.md"
    ),
    "log_end_not_known": "the end of this partition is not known; asked again",
    "log_ends_not_known": "lag, and how far to catch up, are not known; asked again",
    "log_moved": (
        "the log was truncated, or lost records to retention; the shard goes on where the log does"
    ),
    "loop_did_not_stop": "the process ends without a hand-over; other nodes take over its slices",
    "loop_failed": (
        "the worker process ends and is replaced. If a store is at fault (full disk, failed "
        "fsync, newer format), correct that; else report the traceback"
    ),
    "node_forgotten": "the node was away longer than placement.away_ms; others build its copies",
    "owner_node_gone": (
        "the owner entry in ZooKeeper was deleted by another client; the slice is given up"
    ),
    "own_topics_at_risk": (
        "cursors may be lost, or dead letters and outcomes not be written; problems on this line "
        "name the topic and the setting to change"
    ),
    "ownership_failed": "the worker process ends and is replaced; report the traceback",
    "ownership_lost": (
        "another writer took over; this worker claims its slices again. If it repeats, look for a "
        "second service with the same topics"
    ),
    "ownership_not_confirmed": "claims of these slices wait until ZooKeeper answers",
    "ownership_unpinned": "slices move between nodes as usual again",
    "pauses_not_read": "new pauses have no effect until the topic can be read",
    "predecessor_evicted": (
        "owner entries of this worker's former process were deleted from ZooKeeper"
    ),
    "question_failed": "a query of the admin API to this worker failed; the service goes on",
    "registration_gone": "this node's entry in ZooKeeper was deleted; it is written again",
    "repair_topic_not_read": "this node gets no repair orders until the topic can be read",
    "request_failed": "the admin API answered with status 500; the traceback says why",
    "resigned": "this worker gave up the slices; why is the reason",
    "shard_dropped": "the topic was deleted, created again, or is no longer served",
    "slice_interrupted": (
        "the slice is given up; delivery goes on once the cause is gone, or on another node. "
        "Check connection, rights, secret, and for a foreign checkpoint"
    ),
    "slice_retired": "other nodes keep its copies now; its stores here are removed",
    "slot_condemned": (
        "the file is moved to quarantine; its records are read again from Kafka. Check the disk"
    ),
    "slot_damaged": (
        "a part of the store can't be read; its records are read again from Kafka. Check the disk"
    ),
    "slot_rebuilt": "frames is the number of records that were read again from Kafka",
    "slots_missing": (
        "usual after a crash: these slots were settled before it. Those that were not are read "
        "again from Kafka, with slot_damaged"
    ),
    "space_not_reclaimed": "the disk space of a removed shard is freed at a later compaction",
    "storing_resumed": "the disk has room again; records that were left in Kafka are stored now",
    "storing_stopped": "new records stay in Kafka, delivery goes on; free or add disk space",
    "supervisor_failed": "the node ends; start it again and report the traceback",
    "take_over_failed": (
        "the slices are released, and claimed again later. Check connection, rights, secret, "
        "and for a checkpoint of a newer version"
    ),
    "target_blocked": (
        "records for this target are parked and tried again; others_before is the number of "
        "blocked targets before it that were not logged"
    ),
    "targets_given_up": (
        "these targets can't take records now, see the reason; their records are parked meanwhile"
    ),
    "targets_not_seen": "the state of target topics is not known; asked again",
    "took_over": "this worker delivers the slice now; shards holds the cursor of each delay topic",
    "topic_at_risk": "this delay topic may lose records: correct what problems names",
    "topic_config_not_read": (
        "give the service DescribeConfigs on it; limits of the topic are not known"
    ),
    "topic_not_described": "the topic was deleted a moment ago, or rights are missing on it",
    "topic_not_looked_up": "the leader may have moved; asked again",
    "topic_not_served": (
        "records of this delay topic wait in Kafka; correct what problems names before "
        "retention deletes them"
    ),
    "topic_served_again": "the problems of this delay topic are solved",
    "topics_not_refreshed": (
        "known topics are still served; changes take effect when topics can be read again"
    ),
    "settings_not_readable": (
        "settings by which Kafka may lose acknowledged records were not checked here; give the "
        "service DescribeConfigs on the topic, or on the cluster for a broker"
    ),
    "topics_small": "topics with too few replicas or partitions for these brokers: why names them",
    "unused_shard_removed": "this store held a slice that the worker no longer serves",
    "waiting_for_kafka": (
        "the worker starts when Kafka answers; check address, rights and missing topics"
    ),
    "worker_died": (
        "status is the exit status; a new process starts in next_in_s seconds. Status -9 is a "
        "kill, often for memory"
    ),
    "worker_electable": "this worker may own slices again",
    "worker_failed": "the worker process ends and is replaced; report the traceback",
    "worker_hung": (
        "the worker's loop has made no progress for hung_s seconds; the process is killed and "
        "replaced. Check the disk"
    ),
    "worker_not_electable": "this worker owns no slice until the cause is gone",
    "worker_session_ended": "other workers take its slices over without waiting for the session",
    "worker_session_left": (
        "ZooKeeper ends the dead worker's session after its timeout; its slices wait until then"
    ),
    "worker_silent": (
        "the worker has not reported for silent_s seconds; the process is killed and replaced. "
        "Check memory and CPU"
    ),
    "writer_blocks": (
        "an open transaction of this writer holds up readers; the writer is fenced. If its node "
        "did not die, check that node"
    ),
    "writer_fenced": "open transactions of a former owner were aborted; it can no longer write",
    "writer_ended": (
        "its open transaction has no effect; a new writer takes the slices over and delivers the "
        "records. If it repeats, the reason names the topic or the connection"
    ),
    "writer_not_opened": (
        "no transactions are possible, so the worker may own no slice until it succeeds. Check "
        "the brokers, transaction.max.timeout.ms, the copies of __transaction_state, and Write on "
        "the transactional ids"
    ),
    "zookeeper_client": "a message of the ZooKeeper client",
}
