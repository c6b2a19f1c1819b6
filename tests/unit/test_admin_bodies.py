"""docs/internals/api-bodies.md shows every body of the API as it is."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
from pydantic import BaseModel, TypeAdapter

from delayservice.admin import models
from delayservice.admin.history import Sample
from delayservice.admin.problems import Problem
from delayservice.metrics.status import NodeState, Pause
from tests.admin.described import openapi
from tests.docs.pages import ROOT

PAGE: Final = (
    (ROOT / "docs" / "internals" / "api-bodies.md").read_text("utf-8").partition("## Every body")[2]
)
SECTION: Final = re.compile(r"^### (.*)\n((?:(?!^###? ).*\n)*)", re.MULTILINE)
BLOCK: Final = re.compile(r"```json\n(.*?)```", re.DOTALL)
SHOWN: Final = [
    (name, [json.loads(block) for block in BLOCK.findall(text)])
    for name, text in SECTION.findall(PAGE)
]

MODELS: Final[dict[str, list[Any]]] = {
    "/v1/records/cancel": [models.ById, models.Done],
    "/v1/records/reschedule": [models.Reschedule],
    "/v1/pauses/KIND/NAME": [models.Reason, Pause],
    "/v1/pauses`": [list[Pause]],
    "/healthz": [models.Health],
    "/v1/node": [NodeState],
    "/v1/cluster": [models.Cluster],
    "/v1/history": [list[Sample]],
    "/v1/pending/horizon": [models.Backlog],
    "/v1/pending/timeline": [models.Timeline],
    "/v1/pending`": [models.PendingPage],
    "/v1/records?id=": [list[models.WholeRecord]],
    "/v1/records/TOPIC/PARTITION/OFFSET": [models.RecordFate],
    "/v1/dead-letters": [models.DeadLetters],
    "Every error": [Problem],
}
"""By a part of the heading: what its blocks are."""


@pytest.mark.parametrize("part", MODELS)
def test_every_body_is_shown_whole_and_as_it_is(part: str) -> None:
    [(_, bodies)] = [one for one in SHOWN if part in one[0]]
    for kind, body in zip(MODELS[part], bodies, strict=True):
        found = TypeAdapter(kind).validate_python(body)
        if not (isinstance(found, BaseModel) and "forbid" in str(found.model_config)):
            assert TypeAdapter(kind).dump_python(found, mode="json") == body


def test_every_operation_has_its_section() -> None:
    headings = " ".join(name for name, _ in SHOWN)
    paths = openapi()["paths"]
    assert len(paths) > 15
    for path, operations in paths.items():
        named = re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), path)
        for method in operations.keys() - {"delete"}:
            assert f"`{method.upper()} {named}" in headings, (
                f"{method} {path} is not in api-bodies.md"
            )
