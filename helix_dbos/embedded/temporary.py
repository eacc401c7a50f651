"""A server that leaves nothing behind, for tests and trials."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from helix_dbos.embedded.server import EmbeddedServer, start_embedded

__all__ = ["temporary_server"]


@contextmanager
def temporary_server() -> Generator[EmbeddedServer, None, None]:
    """A new, empty server that is stopped and deleted at the end of the block; works as root too.

    (Temporary folders of test runners are closed to root's server account, this one is not.)
    """
    folder = Path(tempfile.mkdtemp(prefix="helix-dbos-"))
    try:
        if os.geteuid() == 0:
            folder.chmod(0o755)
        with start_embedded(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)
