"""The run-books of docs/operations.md, typed on the machine of a node.

What no test machine has is stood in for: ``systemctl`` starts and stops the node, ``journalctl``
shows its log. ``kafka-configs.sh`` is Kafka's own tool. Every other command is what it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from delay_devtools.cluster import EmbeddedCluster
from tests.alert_rules import OPERATIONS, run_book
from tests.docs.kafka_tools import put_tools, stand_in
from tests.faults.node import Node

_BLOCK: Final = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_TIMEOUT_S: Final = 240
NOT_HEALTHY: Final = frozenset({0, 1, 3})
"""What ``delayservice status`` may end with while something is wrong."""


def commands(alert: str, part: str) -> list[str]:
    """The commands of one part (``Look`` or ``Do``) of an alert's run-book."""
    section = run_book(alert).partition(f"\n**{part}.**")[2].partition("\n**")[0]
    lines = [line for block in _BLOCK.findall(section) for line in _unfolded(block)]
    return [line for line in lines if line]


def functions() -> str:
    """The shell functions that the page defines before the first run-book."""
    text = OPERATIONS.read_text("utf-8").partition("\n## Alerts\n")[2]
    return str(_BLOCK.findall(text)[0])


def _unfolded(block: str) -> list[str]:
    return re.sub(r"\\\n\s*", "", block).splitlines()


class Machine:
    """Where a node runs, as whoever is called at night finds it.

    Args:
        cluster: the brokers.
        folder: for the stand-ins.
        node: the node that the alert names.
        sets: its settings, ``section.key=value``.
        says: what stands in a run-book, and what it is here.
    """

    def __init__(
        self,
        cluster: EmbeddedCluster,
        folder: Path,
        node: Node,
        sets: list[str],
        says: Mapping[str, str],
    ) -> None:
        self._node = node
        self._says = says
        tools = folder / f"tools-{node.node_id}"
        tools.mkdir()
        stand_in(tools / "journalctl", f'exec cat "{node.log_path}"')
        put_tools(tools, cluster.folder / "log4j2.properties")
        path = [str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._environment = {
            **os.environ,
            "PATH": os.pathsep.join(path),
            "B": cluster.bootstrap,
            **dict(_variable(one) for one in sets),
        }

    def look(self, alert: str) -> str:
        """Run the commands of the run-book's part Look; return their output."""
        return self._type(commands(alert, "Look"))

    def do(self, alert: str) -> str:
        """Run the commands of the run-book's part Do."""
        return self._type(commands(alert, "Do"))

    def _type(self, lines: list[str]) -> str:
        assert lines, "the run-book has no command here"
        return "\n".join(self.type_one(line) for line in lines)

    def type_one(self, line: str) -> str:
        """Run one command in a shell of the machine; return its output."""
        defined = functions()
        for said, here in self._says.items():
            line, defined = line.replace(said, here), defined.replace(said, here)
        if line.startswith("systemctl "):
            return self._systemctl(line.split()[1])
        pid = str(self._node.worker().pid) if "$PID" in line else ""
        done = subprocess.run(
            ["bash", "-c", f"{defined}{line}"],  # noqa: S607 (from the PATH)
            capture_output=True,
            text=True,
            check=False,
            env=self._environment | {"PID": pid},
            timeout=_TIMEOUT_S,
        )
        allowed = NOT_HEALTHY if line == "delayservice status" else {0}
        assert done.returncode in allowed, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _systemctl(self, verb: str) -> str:
        if verb in {"stop", "restart"}:
            self._node.stop()
        if verb in {"start", "restart"}:
            self._node.start()
        return ""


def _variable(setting: str) -> tuple[str, str]:
    """Return ``section.key=value`` as an environment variable."""
    name, _, value = setting.partition("=")
    section, _, key = name.partition(".")
    if section == "kafka":  # options of its client have dots in their names
        key = key.replace(".", "__", 1).replace(".", "_")
    key = key.replace(".", "__")
    return f"DELAYSERVICE_{section}__{key}".upper(), value
