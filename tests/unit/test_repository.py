"""What the repository itself must hold, and must not."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))

# In pieces, so that this file does not hold what it looks for.
REGISTRY_HOSTS = re.compile(
    "|".join(
        re.escape(".".join(host))
        for host in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("maven", "apache", "org"),
            ("maven", "org"),
            ("maven", "google", "com"),
            ("registry", "npmjs", "org"),
            ("deb", "debian", "org"),
        )
    ),
    re.IGNORECASE,
)


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607 - git from the PATH
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("not a git work tree")
    paths = (ROOT / name for name in listing.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


def test_no_file_holds_the_address_of_a_registry() -> None:
    holders = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if REGISTRY_HOSTS.search(path.read_bytes().decode("utf-8", "ignore"))
    ]
    assert not holders


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_every_package_by_hash_and_holds_no_address(lock: Path) -> None:
    text = lock.read_text("utf-8")
    assert "://" not in text
    assert not re.search(
        r"^\s*(-i|-f|--index|--extra-index|--find-links|--trusted)", text, re.MULTILINE
    )
    packages = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE | re.IGNORECASE)[1:]
    assert packages
    for package in packages:
        name, *rest = package.splitlines()
        assert re.match(r"[\w.-]+==\S+", name), name
        assert any("--hash=sha256:" in line for line in rest), name


def test_every_lock_of_the_project_is_there() -> None:
    assert [lock.name for lock in LOCKS] == ["build.txt", "dev.txt", "node.txt", "spark.txt"]
