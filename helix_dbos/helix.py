"""`Helix`: the app. Authors declare agents; everything they do with them goes through here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

from pydantic import JsonValue, ValidationError

from helix_dbos.agents import Agent, AgentRegistry
from helix_dbos.agents.erased import AnyAgent
from helix_dbos.core.messages import FilePart, TextPart, UserContent, user_content
from helix_dbos.core.storable import NotStorable, storable
from helix_dbos.errors import DefinitionError, NotFoundError, RequestError
from helix_dbos.faults import Reach, unreached
from helix_dbos.process import Process
from helix_dbos.run import Run
from helix_dbos.settings import Role, Settings
from helix_dbos.store.runs import load_run
from helix_dbos.store.sessions import load_session
from helix_dbos.workflows.accept import TurnRequest, accept_turn, check_ids

__all__ = ["Helix"]

OutputT = TypeVar("OutputT")

_APP_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{2,62}")
_MAX_MESSAGE_BYTES = 8 * 1_048_576
_MAX_METADATA_BYTES = 65_536


class Helix:
    """One app: its agents, one schema of one database, and this process's part in it.

    Inside `async with helix:` the process is an executor: it carries turns (role `worker`) or
    only accepts them (role `api`).

    Args:
        agents: Every agent this process can carry; names are unique.
        name: The app's name, 3 to 63 lower-case letters, digits, dashes and underscores. Its
            queue and version carry it, and its schema is bound to it at first start.
        settings: Made from `HELIX_*` variables when omitted.
        reach: Called at every fault point; for crash tests.

    Raises:
        DefinitionError: The name or the agents are not usable.
    """

    def __init__(
        self,
        agents: Sequence[AnyAgent],
        *,
        name: str = "helix",
        settings: Settings | None = None,
        role: Role = "worker",
        reach: Reach = unreached,
    ) -> None:
        if not _APP_NAME.fullmatch(name):
            raise DefinitionError(
                "An app's name is 3 to 63 lower-case letters, digits, dashes and underscores.",
                detail=repr(name),
            )
        self.name, self.role = name, role
        self.agents = AgentRegistry(agents)
        self.settings = settings or Settings()
        self._process = Process(name, self.agents, self.settings, role, reach)
        self._process.on_end = self._announce_end
        self._waiting: dict[str, set[asyncio.Event]] = {}

    async def __aenter__(self) -> Self:
        """Check or migrate the schema, become an executor, and start the engine.

        Raises:
            StoreError: The database is missing, too old, or another app's.
            SchemaError: The schema is not of this version; the error names the command.
        """
        await self._process.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain and stop: bodies get their grace, the rest is left to other processes."""
        await self._process.stop()

    @overload
    async def execute(
        self,
        agent: Agent[Any, OutputT, Any],
        message: str | Sequence[TextPart | FilePart],
        *,
        session_id: str | None = None,
        request_key: str | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Run[OutputT]: ...
    @overload
    async def execute(
        self,
        agent: str,
        message: str | Sequence[TextPart | FilePart],
        *,
        session_id: str | None = None,
        request_key: str | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Run[Any]: ...
    async def execute(
        self,
        agent: AnyAgent | str,
        message: str | Sequence[TextPart | FilePart],
        *,
        session_id: str | None = None,
        request_key: str | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Run[Any]:
        """Start a turn: it is committed, and will be carried to an end, when this returns.

        Args:
            agent: The agent or its name.
            message: The user's message, as text or as parts.
            session_id: The conversation; a new one when None. 256 characters at most.
            request_key: The same key on a session returns the run it made before and adds
                nothing; with another message it is refused.
            user_id: Whose session it is; bound at its first turn. 256 characters at most.
            metadata: A JSON object given to dependency factories and tools.

        Raises:
            RequestError: The message, an id or the metadata cannot be stored.
            NotFoundError: No such agent here.
            ConflictError: The session is busy or somebody else's.
        """
        check_ids(session_id, request_key, user_id)
        request = TurnRequest(
            agent=self._agent(agent),
            message=_storable_message(message),
            session_id=session_id,
            request_key=request_key,
            user_id=user_id,
            metadata=_storable_metadata(metadata),
        )
        accepted = await accept_turn(self._process.runtime, request)
        return self._handle(accepted.run_id, accepted.session_id, request.agent, own=accepted.started_here)

    async def get_run(self, run_id: str) -> Run[Any]:
        """A handle on any run of this app, from any of its processes.

        Raises:
            NotFoundError: There is no such run.
        """
        async with self._process.runtime.database.read() as tx:
            run = await load_run(tx, run_id) if run_id.isprintable() else None
            session = await load_session(tx, run.session_id) if run else None
        if run is None or session is None:
            raise NotFoundError("There is no such run.", detail=run_id)
        return self._handle(run_id, run.session_id, self.agents.get(session.agent))

    def _agent(self, agent: AnyAgent | str) -> AnyAgent:
        name = agent if isinstance(agent, str) else agent.name
        known = self.agents.get(name)
        if known is None:
            raise NotFoundError(
                "There is no such agent.",
                code="agent_unknown",
                detail=f"known: {', '.join(self.agents.names)}",
            )
        return known

    def _handle(self, run_id: str, session_id: str, agent: AnyAgent | None, *, own: bool = False) -> Run[Any]:
        def parse(stored: JsonValue) -> Any:
            return agent.parse_output(stored) if agent else stored

        return Run(run_id, session_id, self._process.runtime.database, parse, self._told_of_end, own=own)

    def _announce_end(self, run_id: str) -> None:
        for event in self._waiting.get(run_id, ()):
            event.set()

    @contextmanager
    def _told_of_end(self, run_id: str) -> Generator[asyncio.Event]:
        """An event that is set when this process commits the run's end."""
        event = asyncio.Event()
        self._waiting.setdefault(run_id, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[run_id].discard(event)
            if not self._waiting[run_id]:
                del self._waiting[run_id]


def _storable_message(message: str | Sequence[TextPart | FilePart]) -> UserContent:
    try:
        content = user_content(message)
        return UserContent.model_validate(storable(content.model_dump(mode="json"), limit=_MAX_MESSAGE_BYTES))
    except (ValidationError, NotStorable) as problem:
        raise RequestError(
            "The message must be text or at least one part, 8 MB at most.", detail=type(problem).__name__
        ) from problem


def _storable_metadata(metadata: Mapping[str, JsonValue] | None) -> dict[str, JsonValue] | None:
    if metadata is None:
        return None
    try:
        if not isinstance(metadata, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise NotStorable(f"it is a {type(metadata).__name__}")
        return cast("dict[str, JsonValue]", storable(dict(metadata), limit=_MAX_METADATA_BYTES))
    except NotStorable as problem:
        raise RequestError(
            "The metadata must be a JSON object, 64 KB at most.", detail=str(problem)
        ) from problem
