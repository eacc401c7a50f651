"""The TARGET of the demo's workers: `helix-dbos worker helix_dbos.cli.demo.app:helix`."""

from __future__ import annotations

import os
import signal
import sys
import threading

from helix_dbos.cli.demo.stage import Stage

__all__ = ["helix"]


def _end_with_the_demo() -> None:
    """Stop when the demo is gone: our standard input is its pipe, which ends however it dies."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


helix = Stage.from_environment(os.environ).app("worker")
threading.Thread(target=_end_with_the_demo, name="demo-lifeline", daemon=True).start()
