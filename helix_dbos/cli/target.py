"""`module:attribute`: finding the `Helix` that a command is to work with."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType

from pydantic import ValidationError

from helix_dbos.cli.console import settings_error
from helix_dbos.errors import HelixError, RequestError
from helix_dbos.helix import Helix

__all__ = ["load_target"]


def load_target(target: str) -> Helix:
    """The `Helix` that the target names. The working directory is searched first, as `python -m` does.

    Raises:
        RequestError: The target names no module, no attribute of it, or something else.
        HelixError: The module declares something wrongly.
    """
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute) or module_name.startswith("."):
        raise _bad("A target is written module:attribute.", f"{target!r}; for example shop.agents:helix")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    module = _import(module_name)
    found: object = getattr(module, attribute, None)
    if isinstance(found, Helix):
        return found
    if found is None:
        raise _bad(f"The module {module_name} has no {attribute!r}.", _candidates(module))
    raise _bad(f"{target} is not a Helix.", f"it is a {type(found).__name__}; {_candidates(module)}")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise _bad(f"There is no module {name}.", f"searched from {os.getcwd()}") from None
        raise _bad(f"The module {name} needs one that is not installed.", missing.name) from None
    except ValidationError as invalid:
        if invalid.title == "Settings":
            raise settings_error(invalid) from None
        raise _failed(name, invalid) from None
    except HelixError:
        raise
    except Exception as failure:
        raise _failed(name, failure) from None


def _failed(name: str, failure: Exception) -> RequestError:
    place = traceback.extract_tb(failure.__traceback__)[-1]
    return _bad(
        f"The module {name} failed while it was imported.",
        f"{type(failure).__name__}: {failure} ({place.filename}, line {place.lineno})",
    )


def _candidates(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Helix))
    return f"its Helix is {', '.join(repr(name) for name in names)}" if names else "it holds no Helix"


def _bad(error: str, detail: str | None) -> RequestError:
    return RequestError(error, code="target_invalid", detail=detail)
