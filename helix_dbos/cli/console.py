"""What the commands print with, and how they say that something went wrong."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

import typer
from pydantic import JsonValue, ValidationError
from rich.console import Console
from rich.text import Text

from helix_dbos.errors import HelixError, RequestError
from helix_dbos.settings import Settings

__all__ = ["load_settings", "plain", "print_json", "reported", "settings_error", "to_stderr", "to_stdout"]

_PIPE_WIDTH = 100
_INTERRUPTED = 130


def to_stdout() -> Console:
    """For results. A pipe gets 100 columns and no colour."""
    _survive(sys.stdout)
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, soft_wrap=False)


def to_stderr() -> Console:
    """For everything that is not the result."""
    _survive(sys.stderr)
    width = None if sys.stderr.isatty() else _PIPE_WIDTH
    return Console(stderr=True, width=width, highlight=False)


def _survive(stream: TextIO) -> None:
    """What the terminal's encoding lacks becomes a question mark, never an exception."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def plain(text: str) -> Text:
    """Text of somebody else's, as it is: no markup of it is obeyed and no escape reaches the terminal."""
    return Text("".join(char for char in text if char in "\n\t" or char.isprintable()))


def print_json(value: JsonValue) -> None:
    """One JSON document on stdout, nothing else."""
    any_text = (sys.stdout.encoding or "").lower().startswith("utf")
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not any_text) + "\n")
    sys.stdout.flush()


@contextmanager
def reported() -> Generator[None]:
    """A command's body: an error of Helix's becomes three plain lines and exit code 1.

    An interruption becomes exit code 130. Anything else is a bug and keeps its traceback.
    """
    try:
        yield
    except HelixError as problem:
        say_problem(problem)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        to_stderr().print("interrupted")
        raise typer.Exit(_INTERRUPTED) from None


def say_problem(problem: HelixError) -> None:
    """The error on stderr: its sentence, its detail and its code."""
    console = to_stderr()
    console.print(Text.assemble(("error: ", "bold red"), plain(problem.error)))
    if problem.detail:
        console.print(Text.assemble("  ", plain(problem.detail)))
    console.print(Text.assemble("  code: ", plain(problem.code)), style="dim")


def load_settings() -> Settings:
    """The settings from the environment.

    Raises:
        RequestError: A variable has an unusable value; the value is not repeated.
    """
    try:
        return Settings()
    except ValidationError as invalid:
        raise settings_error(invalid) from None


def settings_error(invalid: ValidationError) -> RequestError:
    """The settings that are wrong and why, without their values: one may hold a password."""
    problems = (
        f"{_variable(str(error['loc'][0]))}: {error['msg']}"
        for error in invalid.errors(include_input=False, include_url=False)
    )
    return RequestError("The settings are not usable.", code="settings_invalid", detail="; ".join(problems))


def _variable(field: str) -> str:
    """The environment variable behind a field; an alias is one already."""
    return field if field.isupper() else f"HELIX_{field.upper()}"
