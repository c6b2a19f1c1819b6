"""Kafka's own command line, for those who type what the documentation says.

A broker's jars have no shell scripts beside them. These stand in for them: each starts the real
class, under the name that an installed Kafka gives it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from delay_devtools.jars import Jar, ensure_jars
from delay_devtools.servers import Jvm, find_java

TOOLS_JAR: Final = Jar(
    "org.apache.kafka:kafka-tools:4.3.0",
    "b88bc6ccc520d648142515526e4042c285612ce94b032434a88e3e936e38b600",
    698_592,
)
"""Most of the tools; a broker needs no such jar."""

CLASSES: Final = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
_OPTIONS: Final = ("-Xmx128m", "-XX:TieredStopAtLevel=1")


def stand_in(path: Path, line: str) -> None:
    """Write a program that is one line of shell; its arguments are ``"$@"``."""
    path.write_text(f"#!/bin/sh\n{line}\n", "utf-8")
    path.chmod(0o755)


def put_tools(folder: Path, log4j: Path) -> None:
    """Write a stand-in for each tool.

    Args:
        folder: comes first in the path of whoever types.
        log4j: how Java's part logs; a cluster's folder has one.
    """
    jvm = Jvm(find_java(), (*ensure_jars(), *ensure_jars([TOOLS_JAR])), log4j)
    for name, main in CLASSES.items():
        command = jvm.command(main, options=list(_OPTIONS))
        stand_in(folder / name, f'exec {" ".join(command)} "$@"')
