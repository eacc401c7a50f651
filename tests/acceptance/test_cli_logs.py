"""Log lines: one JSON object each, events and ids of ours, nothing unknown of others."""

import json
import logging
import sys

from helix_dbos.cli.logs import JsonFormatter


def line_of(name: str, message: str, **extra: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": name, "msg": message, "levelno": 20, "levelname": "INFO", **extra}
    )
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_record_of_ours_is_its_event_and_its_values():
    line = line_of(
        "helix_dbos.workflows.turn", "a text", event="run_rescued", run_id="r", generation=3, odd={}
    )
    assert line["event"] == "run_rescued"
    assert (line["run_id"], line["generation"], line["level"]) == ("r", 3, "info")
    assert "odd" not in line
    assert "message" not in line


def test_a_record_of_another_library_is_its_message_only():
    line = line_of("httpx2", "careful", secret="hunter2")
    assert line["message"] == "careful"
    assert "secret" not in line


def test_a_traceback_is_kept_for_operators():
    try:
        raise ValueError("on purpose")
    except ValueError:
        line = line_of("helix_dbos.x", "body_failed", exc_info=sys.exc_info())
    assert "ValueError: on purpose" in str(line["exception"])
