"""Two apps in one database: each has its schema, its queue and its processes, and rescues only its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from helix_dbos import Helix, Settings
from helix_dbos.errors import StoreError
from helix_dbos.store.migration import apply_migrations
from helix_dbos.store.tables import metadata
from tests.fault.processes import Start, Worker, Workers
from tests.fault.truth import Truth, connect, wait_for_end
from tests.fault.witness import Witness
from tests.fault.world import Script, make_agent
from tests.support.waiting import poll_until

FOR_EVER = 30.0
STEPS = ((("put", {"n": 1}), ("charge", {"n": 2})), (("put", {"n": 3}),))


@dataclass(frozen=True)
class App:
    """An app of the test; its session is named after it, its agent like the other app's."""

    name: str
    schema: str
    database_url: str
    witness: Witness

    def start(self, *, message: str | None = None, body_seconds: float = 0.0) -> Start:
        return Start(
            self.database_url,
            Script(self.witness.path, STEPS, body_seconds=body_seconds),
            app=self.name,
            session_id=self.session_id if message else None,
            message=message,
            settings={"schema_name": self.schema},
        )

    @property
    def session_id(self) -> str:
        return f"session-of-{self.name}"

    def truth(self) -> Truth:
        return Truth(self.database_url, self.session_id, self.witness, self.schema)

    def processes_seen(self, what: str) -> set[int]:
        return {event.pid for event in self.witness.events(what, session_id=self.session_id)}

    def text_of_all_rows(self) -> str:
        """Every row of every table of the app's schema."""
        with connect(self.database_url, self.schema) as rows:
            return "\n".join(
                str(rows.execute(f'SELECT * FROM "{table}"').fetchall()) for table in metadata.tables
            )


@pytest.fixture
def apps(database_url: str, witness: Witness) -> tuple[App, App]:
    """Both apps, migrated."""
    apply_migrations(database_url, "helix_two")
    return App("helix", "helix", database_url, witness), App("two", "helix_two", database_url, witness)


def _killed_in_a_body(workers: Workers, app: App) -> Worker:
    victim = workers.start(app.start(message="go", body_seconds=FOR_EVER))
    poll_until(lambda: len(app.witness.events("start", session_id=app.session_id)) == 2)
    victim.end()
    return victim


def _run(app: App) -> dict[str, Any]:
    with connect(app.database_url, app.schema) as rows:
        run = rows.execute("SELECT * FROM runs WHERE session_id = %s", (app.session_id,)).fetchone()
    assert run is not None
    return run


def test_each_app_rescues_only_its_own(apps: tuple[App, App]) -> None:
    one, two = apps
    with Workers() as workers:
        victims = {app.name: _killed_in_a_body(workers, app) for app in apps}
        rescuers = {two.name: workers.start(two.start())}
        assert wait_for_end(two.database_url, two.session_id, schema=two.schema)["status"] == "completed"
        left_alone = _run(one)
        assert (left_alone["status"], left_alone["generation"]) == ("running", 1)
        rescuers[one.name] = workers.start(one.start())
        assert wait_for_end(one.database_url, one.session_id)["status"] == "completed"
        for app in apps:
            app.truth().holds()
    for app, other in ((one, two), (two, one)):
        assert app.processes_seen("start") == {victims[app.name].pid, rescuers[app.name].pid}
        assert app.processes_seen("ask") == {victims[app.name].pid, rescuers[app.name].pid}
        rows = app.text_of_all_rows()
        assert app.session_id in rows
        assert other.session_id not in rows
        assert _run(other)["run_id"] not in rows
        ends = {n: (call["reason"], call["bodies"]) for n, call in app.truth().numbered().items()}
        assert ends == {1: (None, 2), 2: ("outcome_unknown", 1), 3: (None, 1)}
    assert [_run(app)["queue"] for app in apps] == ["helix-turns-helix", "helix-turns-two"]
    assert _engine_rows(one.database_url) == {
        (_run(app)["run_id"], app.name, f"helix-dbos/1@{app.name}", queue)
        for app in apps
        for queue in (None, _run(app)["queue"])
    }


def _engine_rows(database_url: str) -> set[tuple[str, str, str, str | None]]:
    """Run, application, version and queue of each engine row; a direct start has no queue."""
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            "SELECT split_part(workflow_uuid, ':', 2), application_name, application_version, queue_name"
            " FROM dbos.workflow_status"
        )
        return set(found.fetchall())


async def test_an_app_is_refused_on_another_app_s_schema(apps: tuple[App, App]) -> None:
    one, _ = apps
    settings = Settings(database_url=SecretStr(one.database_url), schema_name=one.schema)
    agents = [make_agent(one.start().script)]
    with Workers() as workers:
        workers.start(one.start())
        poll_until(lambda: one.witness.events("up"))
        with pytest.raises(StoreError) as refusal:
            async with Helix(agents, name="two", settings=settings):
                pass
    assert refusal.value.code == "store_schema_taken"
    assert "'helix'" in str(refusal.value.detail)
    with connect(one.database_url) as rows:
        names = rows.execute("SELECT application_name FROM engine").fetchall()
        assert names == [{"application_name": "helix"}]
        assert len(rows.execute("SELECT * FROM executors").fetchall()) == 1
