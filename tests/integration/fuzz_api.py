"""Made-up requests to the admin API: what its own description allows and forbids."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Final

from tests.integration import fuzz_hooks
from tests.integration.asked import TOKEN

ROOT: Final = Path(__file__).parents[2]
CONFIG: Final = ROOT / "tests" / "schemathesis.toml"


def fuzz(
    address: str, folder: Path, *more: str
) -> tuple[subprocess.CompletedProcess[str], Counter[str]]:
    """One run of schemathesis.

    Args:
        address: of the API, which was given ``TOKEN``.
        folder: what it leaves goes there.
        more: arguments.

    Returns:
        How it ended, and how often each ``STATUS METHOD PATH`` was answered.
    """
    tally = folder / "tally"
    tally.write_text("")
    command = [str(Path(sysconfig.get_path("scripts")) / "schemathesis")]
    command += ["--config-file", str(CONFIG), "run", f"http://{address}/openapi.json"]
    command += ["-H", f"Authorization: Bearer {TOKEN}", "--checks", "all", "--workers", "2"]
    command += ["--phases", "fuzzing", "--continue-on-failure", *more]
    environment = {
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT),
        "SCHEMATHESIS_HOOKS": fuzz_hooks.__name__,
        fuzz_hooks.TALLY: str(tally),
    }
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
    )
    return run, Counter(tally.read_text("utf-8").splitlines())
