"""The two images of this repository: built, measured, and looked into."""

from __future__ import annotations

import json
from typing import Final

from tests.containers.engine import Engine
from tests.containers.report import Report
from tests.containers.standins import BASE_IMAGE
from tests.deployed import ROOT

SERVICE: Final = "delayservice:0.1.0"
SPARK: Final = "delayservice-spark:0.1.0"
_MB: Final = 1_000_000
_SERVICE_MB_MAX: Final = 150
_SPARK_MB_MAX: Final = 1_300
_LOCKED_UP: Final = (
    "--rm",
    "--read-only",
    "--tmpfs",
    "/tmp",  # noqa: S108
    "--network",
    "none",
    "--cap-drop",
    "ALL",
)


def build(engine: Engine, target: str, image: str) -> None:
    """Build a target of the Dockerfile on the stand-in for the image of Python."""
    words = ["build", "--network", "host", "--build-arg", f"BASE_IMAGE={BASE_IMAGE}"]
    engine.docker(*words, "--target", target, "--tag", image, str(ROOT), timeout_s=1_500)


def check(engine: Engine, report: Report) -> None:
    """Check what can be known of the images without servers."""
    base_mb = _mb(engine, BASE_IMAGE)
    report.figure("service_above_base_mb", _mb(engine, SERVICE) - base_mb, _SERVICE_MB_MAX)
    report.figure("spark_mb", _mb(engine, SPARK), _SPARK_MB_MAX)
    for image in (SERVICE, SPARK):
        name = image.partition(":")[0]
        made = _shell(
            engine, image, "id -u; id -g; id -gn; stat -c '%u:%g %a' $PWD /etc/delayservice"
        )
        wanted = ["10001", "10001", "delayservice", "10001:10001 750", "10001:10001 700"]
        report.check(f"{name}: user and group are 10001 and own both folders", made == wanted, made)
        inside = _shell(
            engine, image, "ls -A /var/lib/delayservice /etc/delayservice | grep -v ':$'"
        )
        report.check(f"{name}: the folders are empty", not any(inside), inside)
        found = _shell(engine, image, "find / -xdev -writable -type f 2>/dev/null | grep -v ^/proc")
        report.check(f"{name}: no file of it can be written by its user", not any(found), found)
    help_ = engine.docker("run", *_LOCKED_UP, SERVICE, "--version")
    report.check(
        "delayservice starts on a read-only root without any right", "0.1.0" in help_.stdout
    )
    config = json.loads(engine.inspect(SERVICE, "json .Config"))
    report.check("delayservice: SIGTERM stops it", config["StopSignal"] == "SIGTERM", config)
    report.check(
        "delayservice: the health check asks for its status",
        config["Healthcheck"]["Test"] == ["CMD", "delayservice", "status"],
        config,
    )
    for job in ("audit", "reconcile", "report", "schedule"):
        done = engine.docker("run", *_LOCKED_UP, SPARK, "spark", job, "--help", is_checked=False)
        report.check(f"delayservice-spark knows {job}", done.returncode == 0, done.stderr)


def _mb(engine: Engine, image: str) -> float:
    return int(engine.inspect(image, ".Size")) / _MB


def _shell(engine: Engine, image: str, script: str) -> list[str]:
    # With a writable root: on a read-only one no file counts as writable.
    words = [
        "--rm",
        "--network",
        "none",
        "--cap-drop",
        "ALL",
        "--entrypoint",
        "/bin/sh",
        image,
        "-c",
        script,
    ]
    return engine.docker("run", *words, is_checked=False).stdout.splitlines()
