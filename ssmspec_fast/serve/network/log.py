"""What the server logs, to standard error: of one kind, one line a second at most."""

import logging
import time
from typing import Any

KINDS = 100
"""Kinds that are remembered; then all are forgotten."""


class OneASecond(logging.Filter):
    """Of the records of one kind (logger, level and the first line before values are put into it) lets one a second pass; it
    says how many were left out before it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = dict[tuple[str, int, str], tuple[float, int]]()

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = (record.name, record.levelno, str(record.msg).partition("\n")[0]), time.monotonic()
        last, left_out = self.seen.get(kind, (now - 1, 0))
        if now - last < 1:
            self.seen[kind] = last, left_out + 1
            return False
        if len(self.seen) >= KINDS:
            self.seen.clear()
        self.seen[kind] = now, 0
        if left_out:
            record.msg = f"{str(record.msg).rstrip()} ({left_out} more like this)"
        return True


CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(levelname)s: %(message)s"}},
    "filters": {"rare": {"()": OneASecond}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain", "filters": ["rare"]}},
    "loggers": {name: {"handlers": ["stderr"], "level": "WARNING", "propagate": False} for name in ("uvicorn", "asyncio")},
}
"""For `logging.config.dictConfig`."""
