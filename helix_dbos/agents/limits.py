"""How much one run may cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from helix_dbos.core.messages import Usage
from helix_dbos.errors import DefinitionError

__all__ = ["UsageLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLimits:
    """The most a run may use of each; None does not limit.

    Args:
        requests: Model requests.
        total_tokens: Input and output tokens together.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse limits that nothing could keep."""
        for name, limit in asdict(self).items():
            if limit is not None and limit < 1:
                raise DefinitionError(f"The usage limit '{name}' is {limit!r}; it must be at least 1.")

    def exceeded_by(self, usage: Usage) -> str | None:
        """Say which limit this usage is over, in one sentence; None when it is within all of them."""
        for name, limit in asdict(self).items():
            used: int = getattr(usage, name)
            if limit is not None and used > limit:
                return f"The run used {used} {name.replace('_', ' ')}; its limit is {limit}."
        return None
