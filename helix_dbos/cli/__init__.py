"""The command `helix-dbos`: one module per command. Nothing of the runtime is decided here.

Results go to stdout, everything else to stderr; no command prints a password. Start reading at
`main.py`.
"""

from __future__ import annotations

from helix_dbos.cli.main import app

__all__ = ["app"]
