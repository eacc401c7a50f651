"""What every connection of ours asks of libpq and of the server."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from helix_dbos.store.database import connection_info


def _options(url: str) -> str:
    return str(conninfo_to_dict(connection_info(url, "shop", application="a test"))["options"])


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_the_schema_comes_from_the_search_path(scheme: str) -> None:
    assert "-csearch_path=shop" in _options(f"{scheme}://u@localhost/db")


def test_both_sides_notice_a_vanished_peer() -> None:
    info = conninfo_to_dict(connection_info("postgresql://u@localhost/db", "shop", application="a test"))
    assert info["keepalives_idle"] == "10"
    assert "-ctcp_keepalives_idle=10" in str(info["options"])


def test_the_users_own_options_are_kept() -> None:
    options = _options("postgresql://u@localhost/db?options=-cwork_mem%3D8MB&keepalives_idle=60")
    assert "-cwork_mem=8MB" in options
    assert "read\\ committed" in options
