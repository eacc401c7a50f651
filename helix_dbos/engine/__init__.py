"""The engine: the only code that touches DBOS.

DBOS supplies the durable queue, the claim by one worker, versions and priorities. What is
true is never read from it, except by the sweeper's one look at `workflow_status`.
"""
