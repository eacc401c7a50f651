"""A validation error in words for the model: short, one line per problem, no input echoed."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

__all__ = ["MAX_PROBLEM_CHARS", "describe_problems"]

MAX_PROBLEM_CHARS = 1000
"""The most characters a description may have."""

_MAX_PATH_CHARS = 80
_MAX_MESSAGE_CHARS = 200
_MORE_ROOM = 30


def describe_problems(error: ValidationError) -> str:
    """Each problem as `path: message`, as many as fit, then how many more there are."""
    lines = [_line(each) for each in error.errors(include_url=False, include_input=False)]
    kept: list[str] = []
    room = MAX_PROBLEM_CHARS - _MORE_ROOM
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    left = len(lines) - len(kept)
    return "\n".join([*kept, f"and {left} more"] if left else kept)


def _line(problem: ErrorDetails) -> str:
    path = ".".join(str(part) for part in problem["loc"]) or "arguments"
    return f"{_short(path, _MAX_PATH_CHARS)}: {_short(_message(problem), _MAX_MESSAGE_CHARS)}"


def _message(problem: ErrorDetails) -> str:
    context = problem.get("ctx", {})
    if problem["type"] == "union_tag_invalid":  # pydantic's own words repeat the tag it was given
        return f"{context.get('discriminator')} should be one of {context.get('expected_tags')}"
    return problem["msg"]


def _short(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
