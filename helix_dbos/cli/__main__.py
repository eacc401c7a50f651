"""`python -m helix_dbos.cli` is `helix-dbos`."""

from __future__ import annotations

from helix_dbos.cli import app

app(prog_name="helix-dbos")
