"""Logs of a command: one JSON object per line on stderr, for machines and operators.

Helix's own records carry an event and ids. No message text is ever in them; the traceback of an
exception is, because operators need it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

__all__ = ["JsonFormatter", "configure_logging"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event"}


class JsonFormatter(logging.Formatter):
    """One record as one line of JSON.

    A record of Helix's is its event and the plain values given with it. One of another library's
    is its message: what it puts into `extra` is unknown to us and left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if record.name.partition(".")[0] == "helix_dbos":
            line["event"] = getattr(record, "event", None) or record.getMessage()
            line.update(_own_values(record))
        else:
            line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _own_values(record: logging.LogRecord) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD and isinstance(value, str | int | float | bool | None)
    }


def configure_logging(level: str) -> None:
    """From now on everything logged in this process goes to stderr as JSON lines.

    DBOS's lines come from WARNING on: below, it logs the database's URL.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    dbos = logging.getLogger("dbos")
    # DBOS adds a handler of its own unless it finds one.
    dbos.handlers, dbos.propagate = [handler], False
    for name in ("dbos", "alembic", "httpx2"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
