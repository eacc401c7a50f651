"""What Postgres and JSON can hold: normalised here, at the edge, before any transaction.

Postgres text and jsonb refuse NUL and lone surrogates, and JSON has no NaN or infinity. A
value that slipped through would fail the transaction after the body ran.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import cast

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

__all__ = ["MAX_RESULT_BYTES", "NotStorable", "clean_text", "storable", "storable_json"]

MAX_RESULT_BYTES = 1_048_576
"""The most a stored result may take as JSON, in bytes."""

MAX_DEPTH = 100
"""The deepest nesting of a stored value: pydantic refuses to read back much deeper ones."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class NotStorable(Exception):
    """The value has no JSON form, or too large a one."""


def clean_text(text: str) -> str:
    """The text with every NUL and lone surrogate replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def storable_json(value: JsonValue) -> JsonValue:
    """A JSON value in which every string is clean and every number finite (others become null).

    Raises:
        NotStorable: The value is nested too deeply.
    """
    return _clean(value)


def storable(value: object, *, limit: int = MAX_RESULT_BYTES) -> JsonValue:
    """The JSON form of any value, as it can be stored.

    Args:
        value: Anything pydantic can turn into JSON.
        limit: The most bytes its JSON text may take.

    Raises:
        NotStorable: The value has no JSON form, is recursive or too deep, or is over the limit.
    """
    try:
        plain = cast("JsonValue", to_jsonable_python(value, inf_nan_mode="null"))
        clean = _clean(plain)
        size = len(json.dumps(clean, ensure_ascii=False, allow_nan=False).encode("utf-8"))
    except NotStorable:
        raise
    except Exception as problem:  # the value's own code runs here: serialisers, iterators, properties
        raise NotStorable(f"no JSON form: {type(problem).__name__}") from problem
    if size > limit:
        raise NotStorable(f"{size} bytes of JSON, {limit} at most")
    return clean


def _clean(value: JsonValue, depth: int = 0) -> JsonValue:
    if depth > MAX_DEPTH:
        raise NotStorable(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _clean(item, depth + 1) for key, item in value.items()}
    return value
