"""What all processes of one performance share, and how a worker process is told."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from helix_dbos.cli.demo.desk import Desk, refund_desk
from helix_dbos.cli.demo.script import scripted_clerk
from helix_dbos.cli.demo.shop import open_shop
from helix_dbos.cli.demo.witness import Observed, Witness
from helix_dbos.helix import Helix
from helix_dbos.models.resolve import resolve_model
from helix_dbos.settings import Role, Settings

__all__ = ["APP", "Stage"]

APP = "refund-desk-demo"

_WITNESS, _PROCESS, _PAUSE, _MODEL = (
    "HELIX_DEMO_WITNESS",
    "HELIX_DEMO_PROCESS",
    "HELIX_DEMO_PAUSE_SECONDS",
    "HELIX_DEMO_MODEL",
)


@dataclass(frozen=True)
class Stage:
    """One performance.

    Args:
        url: The database; never shown.
        direct_url: Past any pooler, when the given one is a pooler's.
        schema: Helix's schema; DBOS's and the shop's are named after it.
        model: A provider's model; the scripted clerk when None.
    """

    url: str
    direct_url: str | None
    schema: str
    witness: Witness
    model: str | None = None

    @property
    def dbos_schema(self) -> str:
        """DBOS's tables for this performance."""
        return f"{self.schema}_dbos"

    @property
    def shop_schema(self) -> str:
        """The shop's tables."""
        return f"{self.schema}_shop"

    @property
    def schemas(self) -> tuple[str, str, str]:
        """All that the performance makes in the database."""
        return self.schema, self.dbos_schema, self.shop_schema

    @property
    def settings(self) -> Settings:
        """The settings that every process of the performance has; the rest are defaults."""
        return Settings(
            database_url=SecretStr(self.url),
            direct_database_url=SecretStr(self.direct_url) if self.direct_url else None,
            schema_name=self.schema,
            dbos_schema=self.dbos_schema,
            drain_seconds=2,
        )

    def environment(self, process: str, pause_seconds: float) -> dict[str, str]:
        """The environment of a worker process: ours without its `HELIX_*` variables, and its part."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
        part = {
            "HELIX_DATABASE_URL": self.url,
            "HELIX_SCHEMA": self.schema,
            "HELIX_DBOS_SCHEMA": self.dbos_schema,
            _WITNESS: str(self.witness.path),
            _PROCESS: process,
            _PAUSE: str(pause_seconds),
        }
        optional = {"HELIX_DIRECT_DATABASE_URL": self.direct_url, _MODEL: self.model}
        return ours | part | {name: value for name, value in optional.items() if value}

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Stage:
        """The stage as a worker process was told about it."""
        witness = Witness(Path(environment[_WITNESS]), environment[_PROCESS], float(environment[_PAUSE]))
        return Stage(
            url=environment["HELIX_DATABASE_URL"],
            direct_url=environment.get("HELIX_DIRECT_DATABASE_URL"),
            schema=environment["HELIX_SCHEMA"],
            witness=witness,
            model=environment.get(_MODEL),
        )

    def played_by(self, process: str) -> Stage:
        """The same performance as seen by another process."""
        return replace(self, witness=replace(self.witness, process=process))

    def app(self, role: Role) -> Helix:
        """The app: the refund desk, its model and its bodies watched by the witness."""
        model = resolve_model(self.model) if self.model else scripted_clerk()

        @asynccontextmanager
        async def open_desk() -> AsyncGenerator[Desk]:
            async with open_shop(self.settings, self.shop_schema) as shop:
                yield Desk(shop, self.witness.body)

        desk = refund_desk(Observed(model, self.witness), open_desk)
        return Helix([desk], name=APP, settings=self.settings, role=role)
