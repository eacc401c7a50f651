"""The heart: sessions, runs, messages, calls, answers, checkpoints, executors, engine."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SESSIONS = """
CREATE TABLE sessions (
    session_id      text PRIMARY KEY CHECK (session_id <> '' AND length(session_id) <= 256),
    agent           text NOT NULL,
    generation      bigint NOT NULL DEFAULT 0 CHECK (generation >= 0),
    current_run_id  text,
    user_id         text,
    metadata        jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE session_state (
    session_id  text PRIMARY KEY REFERENCES sessions ON DELETE CASCADE,
    state       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(state) = 'object'),
    version     bigint NOT NULL DEFAULT 0 CHECK (version >= 0)
);

CREATE TABLE session_counters (
    session_id   text PRIMARY KEY REFERENCES sessions ON DELETE CASCADE,
    message_seq  bigint NOT NULL DEFAULT 0 CHECK (message_seq >= 0)
);
"""

RUNS = """
CREATE TABLE runs (
    run_id          text PRIMARY KEY,
    session_id      text NOT NULL REFERENCES sessions ON DELETE CASCADE,
    entry           text NOT NULL CHECK (entry IN ('turn')),
    status          text NOT NULL CHECK (status IN
                        ('queued', 'running', 'suspended', 'completed', 'failed', 'interrupted', 'superseded')),
    generation      bigint NOT NULL DEFAULT 0 CHECK (generation >= 0),
    workflow_id     text NOT NULL UNIQUE,
    stretch_no      integer NOT NULL DEFAULT 1 CHECK (stretch_no >= 1),
    rescues         integer NOT NULL DEFAULT 0 CHECK (rescues >= 0),
    next_rescue_at  timestamptz,
    executor_id     text,
    step_index      integer NOT NULL CHECK (step_index >= -1),
    steps_used      integer NOT NULL DEFAULT 0 CHECK (steps_used >= 0),
    queue           text NOT NULL,
    priority        integer NOT NULL CHECK (priority >= 1),
    output          jsonb,
    error           jsonb,
    usage           jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(usage) = 'object'),
    created_at      timestamptz NOT NULL DEFAULT now(),
    queued_at       timestamptz NOT NULL DEFAULT now(),
    started_at      timestamptz,
    ended_at        timestamptz,
    CONSTRAINT runs_ended CHECK ((ended_at IS NULL) = (status IN ('queued', 'running', 'suspended'))),
    CONSTRAINT runs_error CHECK ((error IS NOT NULL) = (status = 'failed')),
    CONSTRAINT runs_output CHECK (output IS NULL OR status = 'completed'),
    CONSTRAINT runs_executor CHECK (executor_id IS NOT NULL OR status <> 'running')
);
CREATE UNIQUE INDEX runs_one_open_per_session ON runs (session_id)
    WHERE status IN ('queued', 'running', 'suspended');
CREATE INDEX runs_session ON runs (session_id, created_at);
CREATE INDEX runs_to_sweep ON runs (queued_at) WHERE status IN ('queued', 'running');

ALTER TABLE sessions ADD CONSTRAINT sessions_current_run
    FOREIGN KEY (current_run_id) REFERENCES runs (run_id) DEFERRABLE INITIALLY DEFERRED;

CREATE TABLE requests (
    session_id   text NOT NULL REFERENCES sessions ON DELETE CASCADE,
    request_key  text NOT NULL CHECK (request_key <> '' AND length(request_key) <= 256),
    body_hash    text NOT NULL,
    run_id       text NOT NULL REFERENCES runs,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_id, request_key)
);
"""

CONVERSATION = """
CREATE TABLE messages (
    session_id     text NOT NULL REFERENCES sessions ON DELETE CASCADE,
    seq            bigint NOT NULL CHECK (seq >= 1),
    run_id         text NOT NULL REFERENCES runs,
    step_index     integer CHECK (step_index >= 0),
    kind           text NOT NULL CHECK (kind IN ('user', 'assistant', 'notice', 'summary')),
    content        jsonb NOT NULL CHECK (jsonb_typeof(content) = 'object'),
    superseded_by  text REFERENCES runs,
    created_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_id, seq),
    CONSTRAINT messages_step CHECK ((kind = 'assistant') = (step_index IS NOT NULL))
);
CREATE UNIQUE INDEX messages_one_reply_per_step ON messages (session_id, step_index)
    WHERE kind = 'assistant' AND superseded_by IS NULL;

CREATE TABLE calls (
    dispatch_id        text PRIMARY KEY,
    session_id         text NOT NULL REFERENCES sessions ON DELETE CASCADE,
    run_id             text NOT NULL REFERENCES runs,
    owner_run_id       text NOT NULL REFERENCES runs,
    step_index         integer NOT NULL CHECK (step_index >= 0),
    call_index         integer NOT NULL CHECK (call_index >= 0),
    tool_call_id       text NOT NULL,
    tool_name          text NOT NULL,
    arguments          jsonb NOT NULL CHECK (jsonb_typeof(arguments) = 'object'),
    kind               text NOT NULL CHECK (kind IN
                           ('local', 'inline_agent', 'remote', 'client', 'approval', 'companion', 'finish')),
    replay             text NOT NULL CHECK (replay IN ('unsafe', 'safe', 'transactional', 'verified')),
    concurrency_group  text,
    sequential         boolean NOT NULL DEFAULT false,
    generation         bigint NOT NULL DEFAULT 0 CHECK (generation >= 0),
    bodies             integer NOT NULL DEFAULT 0,
    state              text NOT NULL CHECK (state IN ('open', 'waiting', 'answered')),
    superseded_by      text REFERENCES runs,
    created_at         timestamptz NOT NULL DEFAULT now(),
    answered_at        timestamptz,
    CONSTRAINT calls_claim CHECK ((bodies = 0) = (generation = 0)),
    CONSTRAINT calls_bodies CHECK (bodies BETWEEN 0 AND CASE replay WHEN 'unsafe' THEN 1 ELSE 3 END),
    CONSTRAINT calls_answered CHECK ((state = 'answered') = (answered_at IS NOT NULL)),
    CONSTRAINT calls_tool_call_id UNIQUE (session_id, tool_call_id)
);
CREATE UNIQUE INDEX calls_place ON calls (session_id, step_index, call_index) WHERE superseded_by IS NULL;
CREATE INDEX calls_unanswered ON calls (session_id) WHERE state <> 'answered' AND superseded_by IS NULL;

-- Two cascades lead here from a session, so the run's must be one too: a session can be deleted.
CREATE TABLE answers (
    dispatch_id    text NOT NULL REFERENCES calls ON DELETE CASCADE,
    n              integer NOT NULL CHECK (n >= 1),
    outcome        text NOT NULL CHECK (outcome IN ('returned', 'raised', 'not_executed')),
    reason         text CHECK (reason IN
                       ('outcome_unknown', 'replay_limit_reached', 'run_stopped', 'client_tool_abandoned',
                        'approval_denied', 'invalid_arguments', 'unknown_tool', 'tool_error', 'tool_failed',
                        'timed_out', 'result_not_storable')),
    result         jsonb NOT NULL,
    origin         text NOT NULL CHECK (origin IN
                       ('reply', 'body', 'recovery', 'failure', 'stop', 'entry', 'client', 'operator',
                        'child', 'deadline')),
    run_id         text NOT NULL REFERENCES runs ON DELETE CASCADE,
    generation     bigint NOT NULL CHECK (generation >= 0),
    superseded_by  text REFERENCES runs ON DELETE CASCADE,
    created_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dispatch_id, n),
    CONSTRAINT answers_reason CHECK ((reason IS NULL) = (outcome = 'returned'))
);
CREATE UNIQUE INDEX answers_one_current ON answers (dispatch_id) WHERE superseded_by IS NULL;

CREATE TABLE checkpoints (
    checkpoint_id  text PRIMARY KEY,
    session_id     text NOT NULL REFERENCES sessions ON DELETE CASCADE,
    run_id         text NOT NULL REFERENCES runs,
    step_index     integer NOT NULL CHECK (step_index >= -1),
    kind           text NOT NULL CHECK (kind IN ('append', 'step_commit', 'suspension', 'end')),
    message_seq    bigint NOT NULL CHECK (message_seq >= 0),
    state          jsonb NOT NULL CHECK (jsonb_typeof(state) = 'object'),
    superseded_by  text REFERENCES runs,
    created_at     timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX checkpoints_one_of_a_kind ON checkpoints (run_id, step_index, kind)
    WHERE superseded_by IS NULL;
CREATE INDEX checkpoints_session ON checkpoints (session_id, created_at);
"""

PROCESSES = """
CREATE TABLE executors (
    executor_id       text PRIMARY KEY,
    dbos_executor_id  text NOT NULL,
    role              text NOT NULL CHECK (role IN ('worker', 'api')),
    version           text NOT NULL,
    agents            text[] NOT NULL,
    lock_key          bigint NOT NULL UNIQUE,
    host              text NOT NULL,
    pid               integer NOT NULL,
    started_at        timestamptz NOT NULL DEFAULT now(),
    stopped_at        timestamptz
);
CREATE INDEX executors_by_dbos_id ON executors (dbos_executor_id) WHERE stopped_at IS NULL;

CREATE TABLE engine (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    application_name  text NOT NULL,
    app_version       text NOT NULL,
    dbos_schema       text NOT NULL,
    turn_queue        text NOT NULL,
    updated_at        timestamptz NOT NULL DEFAULT now()
);
"""


def upgrade() -> None:
    """Create every table of the heart with its constraints."""
    for statements in (SESSIONS, RUNS, CONVERSATION, PROCESSES):
        op.execute(statements)
