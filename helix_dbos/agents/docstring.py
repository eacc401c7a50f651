"""What a docstring says of a function and of its parameters: Google, numpy or Sphinx style."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from griffe import (
    Docstring,
    DocstringSection,
    DocstringSectionAdmonition,
    DocstringSectionParameters,
    DocstringSectionText,
    GoogleOptions,
    NumpyOptions,
    PerStyleOptions,
    SphinxOptions,
    parse_auto,
)

__all__ = ["DocText", "read_docstring"]

# Off, so that griffe's remarks on a docstring never reach a user's log (test_docstring.py).
_QUIET = PerStyleOptions(
    google=GoogleOptions(warnings=False),
    numpy=NumpyOptions(warnings=False),
    sphinx=SphinxOptions(warnings=False),
)


@dataclass(frozen=True, slots=True)
class DocText:
    """The prose of a docstring, and its words on each parameter."""

    description: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])


def read_docstring(text: str | None) -> DocText:
    """The description and the parameters' descriptions; an odd docstring is prose, never an error."""
    if not text or not text.strip():
        return DocText()
    text = inspect.cleandoc(text)
    try:
        sections = parse_auto(
            Docstring(text), method="heuristics", default="google", per_style_options=_QUIET
        )
    except Exception:  # a docstring must never keep a tool from being defined
        return DocText(text)
    return DocText(_prose(sections), _parameters(sections))


def _prose(sections: Sequence[DocstringSection]) -> str:
    """The text, and what griffe takes for an admonition: any "Title:" with indented lines below."""
    texts: list[str] = []
    for section in sections:
        if isinstance(section, DocstringSectionText):
            texts.append(section.value.strip())
        elif isinstance(section, DocstringSectionAdmonition):
            texts.append(f"{section.title}:\n{section.value.contents.strip()}")
    return "\n\n".join(texts)


def _parameters(sections: Sequence[DocstringSection]) -> dict[str, str]:
    """The first description of each parameter, without the stars some authors write."""
    found: dict[str, str] = {}
    for section in sections:
        if isinstance(section, DocstringSectionParameters):
            for parameter in section.value:
                found.setdefault(parameter.name.lstrip("*"), parameter.description.strip())
    return found
