"""Catalogue of scenes: defects of topics, and what only looks like one.

It is the one definition of these defects, for the drill and for tests. The name of a scene is the
kind of its defect. At ``yield`` the service passes what was written before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from delay_devtools.drill import sound_scenes, wrong_outputs, wrong_settling
from delay_devtools.drill.stage import Scene

DEFECTS: Final[Mapping[str, Scene]] = {
    scene.__name__: scene for scene in (*wrong_outputs.SCENES, *wrong_settling.SCENES)
}
"""Kinds of defects of topics. A seed chooses among them in this order."""

SOUND: Final[Mapping[str, Scene]] = {scene.__name__: scene for scene in sound_scenes.SCENES}
"""Scenes that look like defects, and are none."""

FIRST: Final = frozenset({"duplicate_of_what_is_gone"})
"""Scenes that begin with the history, in the first shard, whose first records retention takes."""

TURN: Final = 12
"""Step after which the contract is another one."""

STEPS_OF: Final[Mapping[str, range]] = {
    "letter_of_its_contract": range(1, TURN),
    "letter_of_the_former_contract": range(TURN + 1, TURN + 8),
}
"""Steps at which scenes begin that depend on the contract."""

LAST: Final = frozenset({"unaccounted", "stuck"})
"""Scenes at the end, which H does not pass."""
