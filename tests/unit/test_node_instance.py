"""What tells two nodes of one name apart."""

from __future__ import annotations

import shutil
from pathlib import Path

from delayservice.config.settings import load
from delayservice.process.node import node_instance


def instance_in(state_dir: Path) -> str:
    return node_instance(load(None, [f"node.state_dir={state_dir}"], {}))


def test_a_node_stays_the_same_in_its_folder_wherever_that_is_moved(tmp_path: Path) -> None:
    first = instance_in(tmp_path / "here")
    assert instance_in(tmp_path / "here") == first
    (tmp_path / "here").rename(tmp_path / "there")
    assert instance_in(tmp_path / "there") == first


def test_a_copy_of_the_folder_is_another_node(tmp_path: Path) -> None:
    first = instance_in(tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert instance_in(tmp_path / "there") != first
