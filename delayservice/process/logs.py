"""Structured logs on standard error: readable text on a terminal, JSON lines elsewhere.

One pipeline formats all lines: those of structlog, the standard library (kazoo) and librdkafka
(its clients have ``clients.LOGGER``). Its last step redacts secrets, whatever wrote the line.
"""

from __future__ import annotations

import logging
import logging.config
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from delayservice.config.reference import HIDDEN
from delayservice.config.settings import LogSettings

# Explanations of log events, by event.
HINTS: Final[Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("log_hints.toml").read_text("utf-8")
)

_SECRET_NAME = re.compile(
    r"password|passwd|secret|token|credential|jaas|\bpem\b|(ssl|api|private)[._-]?key",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(
    r"((?:[\w.-]*(?:password|secret|token|jaas|\.pem|\.key)[\w.-]*)\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;]+)",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"\[[^]]*\]|\([^)]*\)")
# Time for which repeats of a message of librdkafka are dropped, in s.
_REPEAT_S = 10.0
_REPEATS_MAX = 1_000
# Shortest secret to redact in texts, in characters; shorter ones would match ordinary words.
_SECRET_CHARS_MIN = 4


def configure(
    log: LogSettings,
    node_id: str,
    worker: int | None = None,
    *,
    secrets: Sequence[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Set up logging of this process. Call it once, before anything is logged. ``secrets``: texts
    that are replaced in every line; ``stream``: None for standard error.
    """
    out = stream or sys.stderr
    level = logging.getLevelNamesMapping()[log.level.upper()]
    bound = {"node": node_id} if worker is None else {"node": node_id, "worker": worker}
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _bind(bound),
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.stdlib.ExtraAdder(),
    ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(_formatter(log, shared, secrets, colours=out.isatty()))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    logging.getLogger("librdkafka").filters = [_Repeats()]
    # A reconnecting client repeats itself several times a second at these levels.
    logging.getLogger("kazoo").setLevel(max(level, logging.INFO))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            _explain,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


class _Repeats(logging.Filter):
    """Filter that drops repeats of a message within ``_REPEAT_S``: a client that can't connect logs
    the same message many times a second, with differences in brackets only.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        # The text in brackets is not compared.
        said = _BRACKETS.sub("", record.getMessage())
        before_s = self._said_s.get(said, -_REPEAT_S)
        if record.created - before_s < _REPEAT_S:
            return False
        if len(self._said_s) >= _REPEATS_MAX:
            self._said_s.clear()
        self._said_s[said] = record.created
        return True


def _bind(bound: Mapping[str, object]) -> Processor:
    # Context variables would add them for one thread only.

    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {**bound, **event}

    return add


def _explain(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    hint = HINTS.get(event["event"])
    return event if hint is None or "hint" in event else {**event, "hint": hint}


def _formatter(
    log: LogSettings, shared: list[Processor], secrets: Sequence[str], *, colours: bool
) -> logging.Formatter:
    console = log.format == "console" or (log.format == "auto" and colours)
    ending: list[Processor] = (
        [_Redact(secrets), structlog.dev.ConsoleRenderer(colors=colours)]
        if console
        else [
            structlog.processors.EventRenamer("message"),
            _Redact(secrets),
            structlog.processors.JSONRenderer(default=str),
        ]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            # The traceback becomes text before it is searched for secrets.
            structlog.processors.format_exc_info,
            *ending,
        ],
    )


class _Redact:
    """Processor that redacts secrets in a log line: by the name of the field, by patterns of text
    such as ``password=…``, and by their known values.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        known = sorted((s for s in secrets if len(s) >= _SECRET_CHARS_MIN), key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {name: self._clean(name, value) for name, value in event.items()}

    def _clean(self, name: str, value: Any) -> Any:  # noqa: ANN401 (a log line holds anything)
        if _SECRET_NAME.search(name):
            return HIDDEN
        if isinstance(value, bool | int | float) or value is None:
            return value
        if isinstance(value, dict):
            return {key: self._clean(str(key), below) for key, below in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean("", below) for below in value]
        text = value if isinstance(value, str) else str(value)
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return _SECRET_TEXT.sub(rf"\1{HIDDEN}", text)
