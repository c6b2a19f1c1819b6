"""Former location of the script ``delayservice/commands/spark_job.py``, kept for one version."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    place = here.parents[1] / "delayservice" / "commands" / "spark_job.py"
    runpy.run_path(str(place), run_name="__main__")
