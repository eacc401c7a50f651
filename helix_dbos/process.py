"""One process of an app, from start to stop: the order in which things come and go.

    database → schema → pool → executor lock and row → engine → sweeper and watcher

Stopping drains first: no new stretch is taken, those running hand over between two steps or
end within the grace, and what is left is somebody else's to rescue once the lock is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import sqlalchemy.exc

from helix_dbos.agents import AgentRegistry, ProcessDependencies
from helix_dbos.agents.erased import AnyAgent
from helix_dbos.engine.dbos_engine import DbosEngine, migrate_dbos
from helix_dbos.engine.enqueue import QueueAddress
from helix_dbos.engine.lock import ExecutorLock
from helix_dbos.errors import StoreError
from helix_dbos.faults import Reach
from helix_dbos.ids import new_executor_id
from helix_dbos.models.port import ModelPort
from helix_dbos.models.resolve import resolve_model
from helix_dbos.settings import Role, Settings
from helix_dbos.source import DatabaseSource, find_database
from helix_dbos.store.database import Database, Transaction
from helix_dbos.store.engine import claim_schema
from helix_dbos.store.executors import dbos_id_is_held, insert_executor, mark_stopped
from helix_dbos.store.migration import apply_migrations, require_head
from helix_dbos.workflows.runtime import Runtime
from helix_dbos.workflows.sweep import sweep_for_ever
from helix_dbos.workflows.turn import run_stretch
from helix_dbos.workflows.watch import watch_for_ever

__all__ = ["TOOL_THREADS", "Process", "app_version", "migrate_database", "turn_queue"]

logger = logging.getLogger(__name__)

TOOL_THREADS = "helix-tool"
"""What the names of the threads begin with on which sync tools run."""

# Raised by hand when a row written by one version could not be carried by another.
STORE_FORMAT = 1


def app_version(name: str) -> str:
    """The version all processes of an app share: the store's format, not the code's.

    A deploy therefore strands nothing. DBOS wants version names unique across applications.
    """
    return f"helix-dbos/{STORE_FORMAT}@{name}"


def turn_queue(name: str) -> str:
    """The app's turn queue; the name carries the app, because DBOS's queues are shared."""
    return f"helix-turns-{name}"


def migrate_database(source: DatabaseSource, settings: Settings) -> None:
    """Bring DBOS's tables and ours to the versions this package needs. Idempotent; blocking."""
    migrate_dbos(source.url, settings.dbos_schema)
    apply_migrations(source.url, settings.schema_name)


class Process:
    """Starts and stops everything one process needs to carry or to accept turns."""

    def __init__(
        self, name: str, agents: AgentRegistry, settings: Settings, role: Role, reach: Reach
    ) -> None:
        self.name, self.agents, self.settings, self.role, self.reach = name, agents, settings, role, reach
        self.executor_id = ""
        self.on_end: Callable[[str], None] = lambda _run_id: None
        self._started = False
        self._runtime: Runtime | None = None
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._models: dict[str, ModelPort] = {}

    @property
    def runtime(self) -> Runtime:
        """What the drivers share; only there between start and stop.

        Raises:
            StoreError: The app is not started.
        """
        if self._runtime is None:
            raise StoreError(
                "The app is not started.", code="app_not_started", detail="use `async with helix:`"
            )
        return self._runtime

    async def start(self) -> None:
        """Start, or undo what was started and raise.

        Raises:
            StoreError: It is started already, or something it needs is missing.
        """
        if self._started:
            raise StoreError("This app is started already.", code="engine_already_launched")
        self._started = True
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Drain, then close everything in reverse order; a closer that fails stops no other."""
        if self._runtime is not None:
            self._runtime.draining = True
        while self._closers:
            close = self._closers.pop()
            try:
                await close()
            except Exception as failure:
                logger.warning("close_failed", exc_info=failure, extra={"event": "close_failed"})
        self._runtime, self._started = None, False

    async def _start(self) -> None:
        self.executor_id = new_executor_id()  # one per start: a stopped one never comes back
        source = await asyncio.to_thread(find_database, self.settings)
        if source.server is not None:
            server = source.server
            self._closers.append(lambda: _in_own_thread(server.release))
        await asyncio.to_thread(self._prepare_schema, source)
        database = Database(source.url, self.settings.schema_name, pool_size=self.settings.pool_size)
        await database.open()
        self._closers.append(database.close)
        lock = await self._become_executor(database, source)
        engine = self._engine(source)
        self._runtime = runtime = self._make_runtime(database, engine)
        self._closers.append(runtime.process_dependencies.aclose)
        self._closers.append(self._close_models)
        self._closers.append(self._release_threads)
        await engine.launch(self._run_stretch, worker=self.role == "worker")
        self._closers.append(self._drain)
        if self.role == "worker":
            self._background(sweep_for_ever(runtime, lock.held_for), "helix-sweeper")
            self._background(watch_for_ever(runtime), "helix-watcher")

    def _prepare_schema(self, source: DatabaseSource) -> None:
        try:
            if source.embedded or self.settings.migrate == "apply":
                migrate_database(source, self.settings)
            else:
                require_head(source.url, self.settings.schema_name)
        except (psycopg.OperationalError, sqlalchemy.exc.OperationalError) as problem:
            raise StoreError(
                "The database cannot be reached.", detail=f"{source.described}; see `helix-dbos doctor`"
            ) from problem

    async def _become_executor(self, database: Database, source: DatabaseSource) -> ExecutorLock:
        lock = ExecutorLock(source.direct_url, self.settings.schema_name, self.executor_id)
        await lock.acquire()
        self._closers.append(lock.release)

        async def register(tx: Transaction) -> None:
            await claim_schema(
                tx,
                application=self.name,
                app_version=app_version(self.name),
                dbos_schema=self.settings.dbos_schema,
                turn_queue=turn_queue(self.name),
            )
            if await dbos_id_is_held(tx, self.executor_id):
                return  # only our own earlier commit can hold this fresh id
            await insert_executor(
                tx,
                executor_id=self.executor_id,
                dbos_executor_id=self.executor_id,
                role=self.role,
                version=app_version(self.name),
                agents=self.agents.names,
                lock_key=lock.key,
                host=socket.gethostname(),
                pid=os.getpid(),
            )

        await database.transaction(register)
        self._closers.append(lambda: database.transaction(lambda tx: mark_stopped(tx, self.executor_id)))
        return lock

    def _engine(self, source: DatabaseSource) -> DbosEngine:
        address = QueueAddress(
            dbos_schema=self.settings.dbos_schema,
            queue=turn_queue(self.name),
            app_version=app_version(self.name),
            application=self.name,
        )
        return DbosEngine(
            source.url,
            address,
            executor_id=self.executor_id,
            pool_size=self.settings.dbos_pool_size,
            concurrency=self.settings.concurrency,
            poll_seconds=self.settings.queue_poll_seconds,
        )

    def _make_runtime(self, database: Database, engine: DbosEngine) -> Runtime:
        return Runtime(
            database=database,
            engine=engine,
            agents=self.agents,
            settings=self.settings,
            executor_id=self.executor_id,
            queue=turn_queue(self.name),
            process_dependencies=ProcessDependencies(),
            model_for=self._model_for,
            threads=ThreadPoolExecutor(self.settings.concurrency, thread_name_prefix=TOOL_THREADS),
            reach=self.reach,
            ended=lambda run_id: self.on_end(run_id),
            carries_turns=self.role == "worker",
        )

    def _model_for(self, agent: AnyAgent) -> ModelPort:
        if agent.name not in self._models:
            self._models[agent.name] = resolve_model(agent.model)
        return self._models[agent.name]

    async def _run_stretch(self, run_id: str, workflow_id: str) -> str:
        return await run_stretch(self.runtime, run_id, workflow_id)

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)

        async def cancel() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        self._closers.append(cancel)

    async def _drain(self) -> None:
        runtime = self.runtime
        await runtime.engine.close(self.settings.drain_seconds if runtime.live else 0)
        for execution in list(runtime.live.values()):
            execution.lose()
        if runtime.live:
            logger.warning("drain_left_runs", extra={"event": "drain_left_runs", "runs": len(runtime.live)})

    async def _close_models(self) -> None:
        for model in self._models.values():
            close = getattr(model, "aclose", None)
            if close is not None:
                await close()
        self._models.clear()

    async def _release_threads(self) -> None:
        self.runtime.threads.shutdown(wait=False, cancel_futures=True)


async def _in_own_thread(work: Callable[[], None]) -> None:
    """Run blocking clean-up on a thread of its own: asyncio's pool may be DBOS's, shut down."""
    with ThreadPoolExecutor(1, thread_name_prefix="helix-cleanup") as own:
        await asyncio.get_running_loop().run_in_executor(own, work)
