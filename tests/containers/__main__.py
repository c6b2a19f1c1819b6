"""``make containers``: builds both images and runs the deployments of this repository."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from platformdirs import user_cache_path

from tests.containers import compose, images, pods, single, standins
from tests.containers.engine import Engine, EngineError, removed, unpacked
from tests.containers.report import Report

_PROGRAMS = [
    "mmdebstrap",
    "podman",
    "catatonit",
    "docker-compose",
    "runc",
    "iptables",
    "unshare",
    "nsenter",
    "dpkg",
]


def main() -> int:
    """Run the parts; return 0 only if every check holds."""
    parser = argparse.ArgumentParser(prog="make containers", description=__doc__)
    parser.add_argument("--parts", default="images,compose,single,pods", help="what to run")
    parser.add_argument("--scratch", type=Path, help="folder to keep; a temporary one otherwise")
    chosen = parser.parse_args()
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if os.geteuid() or missing:
        needed = ", ".join(_PROGRAMS)
        sys.stderr.write(f"make containers needs root, and the programs {needed}\n")
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    report = Report()
    scratch = chosen.scratch or Path(tempfile.mkdtemp(prefix="delay-containers-"))
    try:
        _run(report, scratch, set(chosen.parts.split(",")))
    except (EngineError, OSError) as exc:
        report.check("no program failed", is_good=False, found=exc)
    except KeyboardInterrupt:
        report.check("it was not interrupted", is_good=False)
    finally:
        if chosen.scratch is None:
            removed(scratch)
    return report.end()


def _run(report: Report, scratch: Path, parts: set[str]) -> None:
    cache = user_cache_path("delayservice") / "containers"
    tools = unpacked(cache / "docker")
    work = Path(tempfile.mkdtemp(prefix="work-", dir=scratch))
    storage = scratch / "engine"
    with Engine(tools, storage, is_isolated=False) as engine:
        report.say("making the stand-ins for images of a registry")
        standins.make(engine, cache, work)
        report.say("building the image of the service")
        images.build(engine, "service", images.SERVICE)
        if "images" in parts:
            report.say("building the image with Spark")
            images.build(engine, "spark", images.SPARK)
            images.check(engine, report)
    with Engine(tools, storage, is_isolated=True) as engine:
        if "compose" in parts:
            compose.check(engine, report, with_spark="images" in parts)
        if "single" in parts:
            single.check(engine, report)
        if "pods" in parts:
            pods.check(engine, report, work)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
