"""Settings of one process, from arguments and `HELIX_*` variables. No behaviour lives here.

DBOS's own variables are honoured where they mean the same thing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["MigrateMode", "Role", "Settings"]

MigrateMode = Literal["check", "apply"]
"""`check` refuses a schema that is not of this version; `apply` migrates it at start."""

Role = Literal["worker", "api"]

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class Settings(BaseSettings):
    """Everything a process needs to know about its surroundings.

    Every field can be set by a variable `HELIX_<FIELD>`; durations are in seconds.
    """

    model_config = SettingsConfigDict(env_prefix="HELIX_", extra="ignore", populate_by_name=True)

    database_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("HELIX_DATABASE_URL", "DBOS_SYSTEM_DATABASE_URL"),
    )
    direct_database_url: SecretStr | None = None
    schema_name: str = Field(default="helix", validation_alias="HELIX_SCHEMA")
    dbos_schema: str = "dbos"
    data_dir: Path | None = None
    migrate: MigrateMode = "check"
    pool_size: int = Field(default=8, ge=2, le=200)
    dbos_pool_size: int = Field(default=8, ge=2, le=200)
    concurrency: int = Field(default=32, ge=1, le=10_000)
    queue_poll_seconds: float = Field(default=0.1, ge=0.02, le=10)
    sweep_seconds: float = Field(default=0.5, ge=0.05, le=60)
    drain_seconds: float = Field(default=10.0, ge=0, le=600)
    direct_start: bool = True
    record_model_steps: bool = True

    @field_validator("schema_name", "dbos_schema")
    @classmethod
    def _plain_identifier(cls, value: str) -> str:
        if not _SCHEMA.fullmatch(value):
            raise ValueError("a schema name is lower-case letters, digits and underscores, 63 at most")
        return value
