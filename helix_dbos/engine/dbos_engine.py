"""DBOS 3.4 as the engine: launch, registration, direct start, steps, housekeeping, shutdown.

DBOS is one per process and its registry is global, so exactly one engine may be launched in
a process; its workflow function is registered once and finds that engine through `_launched`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import cast

from dbos import DBOS, DBOSConfig, SetWorkflowID
from dbos import DBOSPortableJSONSerializer as PortableJSON
from pydantic import JsonValue

from helix_dbos.engine.enqueue import TURN_WORKFLOW, QueueAddress, enqueue_turn
from helix_dbos.engine.port import RunStretch, StrandedRun
from helix_dbos.engine.rows import find_claims, find_leftovers, find_lost_runs
from helix_dbos.errors import StoreError
from helix_dbos.store.database import Transaction

__all__ = ["DbosEngine", "migrate_dbos"]

logger = logging.getLogger(__name__)

_MAX_RECOVERY_ATTEMPTS = 1000  # deploy restarts count too; the bounds that matter are Helix's own

_ROWS_END_SECONDS = 1.0

_launched: DbosEngine | None = None


@DBOS.workflow(name=TURN_WORKFLOW, max_recovery_attempts=_MAX_RECOVERY_ATTEMPTS)
async def _turn(run_id: str) -> str:
    engine, workflow_id = _launched, DBOS.workflow_id
    if engine is None or engine.run_stretch is None or workflow_id is None:
        return "no engine"
    engine.carried[workflow_id] += 1
    try:
        return await engine.run_stretch(run_id, workflow_id)
    finally:
        engine.carried -= Counter((workflow_id,))


def migrate_dbos(url: str, schema: str) -> None:
    """Create or migrate DBOS's own tables. Idempotent; blocking."""
    DBOS.migrate(url, schema=schema)


class DbosEngine:
    """The engine of one process.

    Args:
        url: The database; DBOS's tables and ours are in the same one, or nothing holds together.
        executor_id: DBOS's id for this process; unique per start.
        concurrency: How many stretches this process carries from the queue at a time.
    """

    def __init__(
        self,
        url: str,
        address: QueueAddress,
        *,
        executor_id: str,
        pool_size: int,
        concurrency: int,
        poll_seconds: float,
    ) -> None:
        self.run_stretch: RunStretch | None = None
        self.carried = Counter[str]()
        self.address = address
        self._executor_id = executor_id
        self._concurrency, self._poll_seconds = concurrency, poll_seconds
        self._starts: set[asyncio.Task[None]] = set()
        self._clean = contextvars.copy_context()
        self._config: DBOSConfig = {
            "name": address.application,
            "system_database_url": url,
            "dbos_system_schema": address.dbos_schema,
            "application_version": address.app_version,
            "executor_id": executor_id,
            "serializer": PortableJSON(),
            "run_migrations": False,
            "sys_db_pool_size": pool_size,
            "db_engine_kwargs": {"pool_pre_ping": False},
            "log_level": "WARNING",
        }

    @property
    def starting(self) -> int:
        """How many direct starts are under way."""
        return len(self._starts)

    async def launch(self, run_stretch: RunStretch, *, worker: bool) -> None:
        """Launch DBOS on the running loop; workers start to take stretches.

        Raises:
            StoreError: This process already runs an engine, or DBOS's tables are missing.
        """
        global _launched
        if _launched is not None:
            raise StoreError("This process already runs a Helix app.", code="engine_already_launched")
        self.run_stretch = run_stretch
        _launched = self
        try:
            DBOS(config=self._config)
            DBOS.listen_queues([self.address.queue] if worker else [])
            # Called on the loop's own thread on purpose: that is how DBOS adopts this loop.
            DBOS.launch()
            if worker:
                await self._register_queue()
        except BaseException as problem:
            await self.close(0)
            if not isinstance(problem, Exception):
                raise
            raise StoreError(
                "The durable engine could not start.",
                code="engine_launch_failed",
                detail=f"{type(problem).__name__}; run `helix-dbos migrate`, see `helix-dbos doctor`",
            ) from problem

    async def _register_queue(self) -> None:
        await DBOS.register_queue_async(
            self.address.queue,
            worker_concurrency=self._concurrency,
            polling_interval_sec=self._poll_seconds,
            on_conflict="always_update",
        )

    async def close(self, grace_seconds: float) -> None:
        """Take no new stretch, wait for those running up to the grace, then shut DBOS down."""
        global _launched
        loop = asyncio.get_running_loop()
        if grace_seconds == 0 and _launched is self:
            await self._let_rows_end()
        with ThreadPoolExecutor(1, thread_name_prefix="helix-shutdown") as own:
            # DBOS waits in whole seconds; a zero abandons at once what still runs.
            await loop.run_in_executor(
                own, lambda: DBOS.destroy(workflow_completion_timeout_sec=math.ceil(grace_seconds))
            )
        # DBOS 3.4 leaves its shut-down pool behind as the adopted loop's default executor.
        loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
        self.run_stretch = None
        if _launched is self:
            _launched = None

    async def _let_rows_end(self) -> None:
        """Give DBOS a moment to write the ends of stretches that are over: it cannot once destroyed.

        DBOS's own wait is in whole seconds. What stays PENDING is cancelled by a later sweep.
        """
        own = self._config.get("executor_id")
        with suppress(Exception):
            async with asyncio.timeout(_ROWS_END_SECONDS):
                while await DBOS.list_workflows_async(  # noqa: ASYNC110 - the rows are DBOS's
                    status="PENDING", executor_id=own, limit=1, load_input=False
                ):
                    await asyncio.sleep(0.02)

    async def enqueue(
        self, tx: Transaction, *, run_id: str, workflow_id: str, priority: int, delay_seconds: float = 0.0
    ) -> None:
        """Enqueue a stretch in the caller's transaction."""
        await enqueue_turn(
            tx,
            self.address,
            run_id=run_id,
            workflow_id=workflow_id,
            priority=priority,
            delay_seconds=delay_seconds,
        )

    async def start(self, run_id: str, workflow_id: str) -> None:
        """Start a stretch here without the queue; a start that fails is found by the sweeper."""
        # A context from before any workflow: inside one, DBOS would record the start as its step.
        task = asyncio.create_task(self._start(run_id, workflow_id), context=self._clean.copy())
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _start(self, run_id: str, workflow_id: str) -> None:
        try:
            with SetWorkflowID(workflow_id):
                await DBOS.start_workflow_async(_turn, run_id)
        except Exception as problem:
            logger.warning(
                "direct_start_failed",
                extra={"event": "direct_start_failed", "run_id": run_id, "cause": type(problem).__name__},
            )

    async def record(self, step: Callable[[], Awaitable[dict[str, JsonValue]]]) -> dict[str, JsonValue]:
        """Run a model step as a DBOS step, without DBOS's retries."""

        async def model_step() -> dict[str, JsonValue]:
            return await step()

        return await DBOS.run_step_async({"name": "helix.model_step"}, model_step)

    async def find_lost(self, tx: Transaction, limit: int) -> Sequence[StrandedRun]:
        """The queued and running runs that no live process will bring any further."""
        return await find_lost_runs(tx, self.address.dbos_schema, limit)

    async def unknown_claims(self, tx: Transaction, limit: int) -> Sequence[StrandedRun]:
        """Runs that the engine's rows give to this process, and that it does not carry."""
        claims = await find_claims(tx, self.address.dbos_schema, self._executor_id, limit)
        return [claim for claim in claims if claim.workflow_id not in self.carried]

    async def leftovers(self, tx: Transaction, limit: int) -> Sequence[str]:
        """Unfinished engine rows of this app that carry no run any more."""
        return await find_leftovers(tx, self.address.dbos_schema, self.address.application, limit)

    async def cancel(self, workflow_ids: Sequence[str]) -> None:
        """Cancel engine rows; housekeeping only."""
        for workflow_id in workflow_ids:
            await cast("Awaitable[None]", DBOS.cancel_workflow_async(workflow_id))
