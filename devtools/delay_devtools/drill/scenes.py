"""Catalogue of scenes. The name of a scene is the kind of its defect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from delay_devtools.drill import sound_scenes, wrong_outputs, wrong_settling
from delay_devtools.drill.stage import Scene

# Scenes that write a defect into topics, by kind of defect. A seed selects kinds by this order, so
# a change of it changes every history.
DEFECTS: Final[Mapping[str, Scene]] = {
    scene.__name__: scene for scene in (*wrong_outputs.SCENES, *wrong_settling.SCENES)
}

SOUND: Final[Mapping[str, Scene]] = {scene.__name__: scene for scene in sound_scenes.SCENES}

# Names of the scenes that begin at the start of the history in the first shard, whose first records
# are deleted as by retention.
FIRST: Final = frozenset({"duplicate_of_what_is_gone"})

# Number, from 0, of the step of the history after which the second contract applies.
TURN: Final = 12

# Numbers of the steps of the history in which a scene that depends on the contract may begin, by
# name of the scene.
STEPS_OF: Final[Mapping[str, range]] = {
    "letter_of_its_contract": range(1, TURN),
    "letter_of_the_former_contract": range(TURN + 1, TURN + 8),
}

# Names of the scenes at the end of the history, whose records have offsets from H on.
LAST: Final = frozenset({"unaccounted", "stuck"})
