"""HTTP routes that pause and resume deliveries to target topics and from delay topics."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path
from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

from delayservice.admin.changing import WaitingRoom
from delayservice.admin.context import ApiContext
from delayservice.admin.models import Reason
from delayservice.admin.problems import Refusal, described
from delayservice.base.errors import DelayServiceError
from delayservice.engine.pauses import Kind, Paused, encode_key, encode_pause
from delayservice.engine.pauses import Pause as PauseRow
from delayservice.metrics.status import Pause

_PausedName = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9._*?-]{1,249}$",
        description="A topic; of targets, `*` and `?` stand for any.",
    ),
]
_HEARD_S: Final = 10
_LOOK_S: Final = 0.02


def pause_routes(context: ApiContext, waiting: WaitingRoom) -> APIRouter:
    """Return the routes that pause and resume targets and delay topics on all nodes."""
    routes = APIRouter(prefix="/v1/pauses", tags=["pauses"], responses=described(404))

    @routes.put("/{kind}/{name}")
    def pause(kind: Kind, name: _PausedName, asked: Reason) -> Pause:
        """Pause. This node has heard of it when it answers, others a moment later."""
        if kind == "topic" and name not in context.delay_topics:
            raise Refusal(404, f"{name} is no delay topic")
        row = PauseRow(context.wall_ms(), asked.reason)
        with waiting.place():
            _write_pause(context, Paused(kind, name), encode_pause(row))
        return Pause(kind=kind, name=name, at_ms=row.at_ms, reason=row.reason)

    @routes.delete("/{kind}/{name}", status_code=204)
    def resume(kind: Kind, name: _PausedName) -> None:
        """Go on. What was put off meanwhile comes within `delivery.held_ms` and half as long."""
        newest = context.pauses.newest
        if newest is not None and Paused(kind, name) not in newest.all:
            raise Refusal(404, f"{kind} {name} is not paused")
        with waiting.place():
            _write_pause(context, Paused(kind, name), None)

    return routes


def _write_pause(context: ApiContext, paused: Paused, value: bytes | None) -> None:
    """Write the pause ``value`` of ``paused`` to the pauses topic, or delete it if ``value`` is
    None, and wait until this node's workers have read the change.

    Raises:
        Refusal: the workers have not read it within 10 s, do not answer, or the node stops.
        KafkaEdgeError: the pause may not have been written.
    """
    key = encode_key(paused)
    context.desk.write(context.settings.topics.pauses, 0, key, value, [])
    is_paused = value is not None

    def is_unheard() -> bool:
        return any((key in held) is not is_paused for held in context.inquiry.held())

    is_late = stop_after_delay(_HEARD_S)

    def is_over(state: RetryCallState) -> bool:
        return is_late(state) or context.desk.is_stopping

    try:
        Retrying(retry=retry_if_result(bool), stop=is_over, wait=wait_fixed(_LOOK_S))(is_unheard)
    except RetryError as exc:
        raise Refusal(
            503,
            f"it is written, and not every worker has heard of it in time ({_HEARD_S} s); "
            "see /v1/pauses and the node's problems",
        ) from exc
    except DelayServiceError as exc:
        raise Refusal(
            503, f"it is written, and whether the workers have heard of it is not known: {exc}"
        ) from exc
