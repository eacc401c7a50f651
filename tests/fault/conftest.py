"""A database, a witness and a standing rescuer for each module of crash tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.processes import Start, Workers
from tests.fault.witness import Witness
from tests.fault.world import MIXED, Script
from tests.support.databases import fresh_database


@pytest.fixture(scope="module")
def shared_database_url(server_url: str, template: str) -> Iterator[str]:
    """A migrated database for all tests of a module; their sessions keep them apart."""
    with fresh_database(server_url, template=template) as url:
        yield url


@pytest.fixture(scope="module")
def shared_witness(tmp_path_factory: pytest.TempPathFactory) -> Witness:
    """One witness file for all processes of a module."""
    return Witness(tmp_path_factory.mktemp("witness") / "events")


@pytest.fixture(scope="module")
def standing_rescuer(shared_database_url: str, shared_witness: Witness) -> Iterator[None]:
    """A healthy worker that is up all the time and rescues what the victims leave."""
    with Workers() as workers:
        workers.start(Start(shared_database_url, Script(shared_witness.path, MIXED)))
        yield


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    """A witness of this test's own."""
    return Witness(tmp_path / "events")
