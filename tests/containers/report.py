"""Checks: one line of output each, and one JSON object at the end."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Results of checks, and measured figures.

    Attributes:
        checks: whether each check holds, by its sentence.
        figures: measured values by name; the name ends with the unit.
    """

    checks: dict[str, bool] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    _started_s: float = field(default_factory=time.monotonic)

    def check(self, sentence: str, is_good: bool, found: object = "") -> None:  # noqa: FBT001
        """Note whether a sentence is true, and print it; ``found`` is shown if it is not."""
        self.checks[sentence] = self.checks.get(sentence, True) and is_good
        shown = sentence if is_good else f"{sentence}: {str(found)[-1500:]}"
        self._print("ok  " if is_good else "FAIL", shown)

    def figure(self, name: str, value: float, bound: float | None = None) -> None:
        """Note a measured value; a value above its bound is a failed check."""
        self.figures[name] = round(value, 2)
        if bound is None:
            self._print("    ", f"{name} {value:.1f}")
        else:
            self.check(f"{name} is at most {bound:g}", value <= bound, f"{value:.1f}")
            self._print("    ", f"{name} {value:.1f}")

    def say(self, text: str) -> None:
        """Print what is done next."""
        self._print("    ", text)

    def end(self) -> int:
        """Print the JSON object; return the exit status."""
        self.figure("total_s", time.monotonic() - self._started_s)
        failed = [sentence for sentence, is_good in self.checks.items() if not is_good]
        end = {"checks": len(self.checks), "failed": failed, "figures": self.figures}
        sys.stdout.write(f"{json.dumps(end)}\n")
        return 1 if failed else 0

    def _print(self, sign: str, text: str) -> None:
        after_s = time.monotonic() - self._started_s
        sys.stdout.write(f"{after_s:6.1f} s  {sign}  {text}\n")
        sys.stdout.flush()
