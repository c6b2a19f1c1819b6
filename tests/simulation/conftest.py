"""Makes the simulation importable, which is a package only for ``python -m tests.simulation``."""

import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)
