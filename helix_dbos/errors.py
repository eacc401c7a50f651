"""The one error tree of the project.

    HelixError
    ├── RequestError        the caller's fault: bad input, bad definition, bad setting
    │   ├── DefinitionError     an agent or a tool is declared wrongly (raised at import)
    │   └── NotFoundError       the named thing does not exist
    ├── ConflictError       the request was fine but the state has moved
    ├── StoreError          the database is missing, wrong, or out of reach
    │   └── SchemaError         the schema is not the one this version needs
    ├── ModelError          the model request failed for good
    └── RunError            a run ended without an output (raised by `unwrap` only)

    ToolError               stands alone: a tool's own words to the model

Every error has a stable `code`, a sentence that is safe to show to users, and a `detail`
for developers. Neither holds secrets: whoever raises one keeps them out.
"""

from __future__ import annotations

__all__ = [
    "ConflictError",
    "DefinitionError",
    "HelixError",
    "ModelError",
    "NotFoundError",
    "RequestError",
    "RunError",
    "SchemaError",
    "StoreError",
    "ToolError",
]


class HelixError(Exception):
    """An error of Helix's own: it always has a stable code and a sentence safe for users.

    Args:
        error: One sentence that may be shown to an end user.
        code: A stable identifier from `docs/errors.md`; the class's default when omitted.
        detail: What a developer needs to act; never a secret.
    """

    default_code = "framework_error"

    def __init__(self, error: str, *, code: str | None = None, detail: str | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.code = code or self.default_code
        self.detail = detail

    def __str__(self) -> str:
        """The sentence, then the developer's detail when there is one."""
        return f"{self.error} ({self.detail})" if self.detail else self.error

    def __reduce__(self) -> tuple[object, ...]:
        """Errors pickle cleanly, with their code and detail."""
        return (_rebuild, (type(self), self.error, self.code, self.detail))


def _rebuild(kind: type[HelixError], error: str, code: str, detail: str | None) -> HelixError:
    return kind(error, code=code, detail=detail)


class RequestError(HelixError):
    """The request cannot be served as it is; nothing was stored."""

    default_code = "validation_error"


class DefinitionError(RequestError):
    """An agent or a tool is declared wrongly; raised while it is being defined."""

    default_code = "definition_error"


class NotFoundError(RequestError):
    """The named session, run, agent or call does not exist in this app."""

    default_code = "not_found"


class ConflictError(HelixError):
    """The request was valid, but the session has moved; nothing was stored."""

    default_code = "state_concurrency_conflict"


class StoreError(HelixError):
    """The database is missing, unsuitable, or out of reach."""

    default_code = "store_unavailable"


class SchemaError(StoreError):
    """The schema is missing or not of this version; `helix-dbos migrate` mends it."""

    default_code = "store_schema_mismatch"


class ModelError(HelixError):
    """The model request failed and will not be repeated."""

    default_code = "model_error"


class RunError(HelixError):
    """A run ended without an output; raised only by `RunOutcome.unwrap`."""

    default_code = "run_failed"


class ToolError(Exception):
    """Raised inside a tool: its text is given to the model as the call's answer.

    The call is answered `raised`, and the text is what the model reads, so it must be
    fit for the model and hold no secret. Any other exception gives the model a generic
    sentence instead.
    """
