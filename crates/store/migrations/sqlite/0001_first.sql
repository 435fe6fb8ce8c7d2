-- The first schema. Both dialects have the same tables and columns (tested). Times are milliseconds
-- since the Unix epoch, booleans are booleans, JSON is text, and states are the words of
-- `core::state`. There are no foreign keys between the tables that batches write: `apply` keeps
-- them together, and retention deletes whole runs.

create table meta (
    key text primary key,
    value text not null
);
insert into meta (key, value) values ('min_reader', '1');

create table cluster (
    singleton bigint primary key check (singleton = 1),
    id text not null,
    key_check blob not null,
    created_at bigint not null
);

create table org (
    name text primary key,
    weight bigint not null,
    created_at bigint not null
);
insert into org (name, weight, created_at) values ('default', 1, 0);

create table source (
    id blob primary key,
    org text not null,
    name text not null,
    kind text not null,
    url text not null,
    -- What the server knows about it beyond this row: JSON.
    settings text not null,
    -- Sealed by the server.
    secrets blob,
    created_at bigint not null,
    updated_at bigint not null,
    unique (org, name)
);

-- The inbox.
create table delivery (
    id blob primary key,
    org text not null,
    source_id blob not null,
    -- The sender's own id of it.
    delivery_key text not null,
    -- Set where the same body again is a replay; cleared when it may come again.
    body_digest blob,
    kind text not null,
    headers text not null,
    body blob not null,
    state text not null,
    outcome text,
    event_id blob,
    owner blob,
    -- Not to be leased before.
    next_at bigint not null,
    tries bigint not null,
    error text,
    created_at bigint not null,
    ended_at bigint,
    unique (source_id, delivery_key),
    unique (source_id, body_digest)
);
create index delivery_due on delivery (next_at) where state = 'pending';
create index delivery_leased on delivery (owner) where state = 'pending' and owner is not null;
create index delivery_by_time on delivery (created_at, id);

create table event (
    id blob primary key,
    org text not null,
    source_id blob not null,
    kind text not null,
    -- The same key again is the same event.
    event_key text,
    ref_name text,
    branch text,
    commit_sha text,
    actor text,
    title text,
    body text not null,
    created_at bigint not null,
    unique (source_id, event_key)
);

create table plan (
    key text primary key,
    body text not null,
    -- The workflow files, as a start carries them.
    folder text not null,
    created_at bigint not null
);

create table plan_at (
    source_id blob not null,
    commit_sha text not null,
    plan_key text,
    error text,
    created_at bigint not null,
    primary key (source_id, commit_sha)
);

create table run_counter (
    source_id blob not null,
    workflow text not null,
    last bigint not null,
    primary key (source_id, workflow)
);

create table run (
    id blob primary key,
    org text not null,
    source_id blob not null,
    event_id blob not null,
    workflow text not null,
    file text not null,
    number bigint not null,
    plan_key text,
    ref_name text,
    branch text,
    commit_sha text,
    title text,
    env text not null,
    -- From its start; absent: as long as it takes.
    timeout_ms bigint,
    rerun_of blob,
    -- The gate that the whole run passes, and whether it cancels older ones there.
    gate_id bigint,
    gate_cancels boolean not null,
    -- It waits there: each of its jobs waits for one thing more.
    held boolean not null,
    -- Some of its jobs have a gate.
    gated boolean not null,
    -- When its delivery came in: the order at gates.
    arrived_at bigint not null,
    -- Grows with every change of the run or its jobs.
    revision bigint not null,
    state text not null,
    cancel_force boolean,
    cancel_reason text,
    cancel_by text,
    n_waiting bigint not null,
    n_running bigint not null,
    n_success bigint not null,
    n_failed bigint not null,
    n_timed_out bigint not null,
    n_cancelled bigint not null,
    n_skipped bigint not null,
    n_lost bigint not null,
    n_tolerated bigint not null,
    created_at bigint not null,
    started_at bigint,
    ended_at bigint
);
create unique index run_once on run (event_id, workflow) where rerun_of is null;
create index run_by_time on run (created_at, id);
create index run_by_org on run (org, created_at, id);
create index run_by_source on run (source_id, created_at, id);
create index run_open on run (id) where state in ('pending', 'running', 'cancelling');

create table label_class (
    id integer primary key autoincrement,
    org text not null,
    priority bigint not null,
    key text not null,
    unique (org, priority, key)
);

create table job (
    id blob primary key,
    run_id blob not null,
    org text not null,
    -- Order in the run.
    position bigint not null,
    -- Its group: the name in the plan, which all children of a fan-out share.
    name text not null,
    title text not null,
    matrix text,
    spec text not null,
    class bigint not null,
    priority bigint not null,
    retry_max bigint not null,
    retry_on bigint not null,
    continue_on_error boolean not null,
    state text not null,
    reason text,
    attempt bigint not null,
    try_no bigint not null,
    abandoned bigint not null,
    waiting_for bigint not null,
    refused text not null,
    -- The gate that it passes once it is ready, and whether it cancels older ones there.
    gate_id bigint,
    gate_cancels boolean not null,
    cancel_force boolean,
    cancel_reason text,
    cancel_by text,
    queue_seq bigint,
    -- The job of an earlier run whose success a rerun took over.
    carried_from blob,
    created_at bigint not null,
    queued_at bigint,
    started_at bigint,
    ended_at bigint
);
create index job_by_run on job (run_id, position);
create index job_gated on job (run_id) where gate_id is not null;

create table job_group (
    run_id blob not null,
    name text not null,
    open_jobs bigint not null,
    outcome text not null,
    primary key (run_id, name)
);

create table edge (
    run_id blob not null,
    upstream text not null,
    job_id blob not null,
    -- Bits of `core::state::OutcomeSet`.
    accepts bigint not null,
    primary key (run_id, upstream, job_id)
);
create index edge_by_job on edge (job_id);

create table attempt (
    job_id blob not null,
    attempt bigint not null,
    try_no bigint not null,
    org text not null,
    state text not null,
    agent_id blob,
    key_hash blob,
    deadline bigint not null,
    release_at bigint,
    renewed_at bigint,
    seq bigint not null,
    reason text,
    late text,
    end_json text,
    log_bytes bigint not null,
    owner_instance blob,
    owner_epoch bigint not null,
    created_at bigint not null,
    started_at bigint,
    ended_at bigint,
    primary key (job_id, attempt)
);
create index attempt_live on attempt (org) where state in ('offered', 'starting', 'running');
create index attempt_by_agent on attempt (agent_id) where state in ('offered', 'starting', 'running');

create table step (
    job_id blob not null,
    attempt bigint not null,
    idx bigint not null,
    state text not null,
    started_at bigint,
    ended_at bigint,
    exit_code bigint,
    error text,
    outputs text,
    tries bigint not null,
    primary key (job_id, attempt, idx)
);

create table queue (
    seq integer primary key autoincrement,
    job_id blob not null unique,
    run_id blob not null,
    org text not null,
    class bigint not null,
    priority bigint not null,
    queued_at bigint not null
);
create index queue_by_org on queue (org);
-- The heads of all classes are found without reading the queue.
create index queue_by_class on queue (class, seq);

-- What holds runs and jobs back. A concurrency group has slots.
create table gate (
    id integer primary key autoincrement,
    org text not null,
    -- The source that it belongs to; all zeros: the org shares it.
    scope blob not null,
    name text not null,
    slots bigint not null,
    created_at bigint not null,
    unique (org, scope, name)
);

-- Who stands at a gate, with a slot or waiting for one.
create table gate_place (
    seq integer primary key autoincrement,
    gate_id bigint not null,
    run_id blob not null,
    -- Absent: the whole run.
    job_id blob unique,
    holding boolean not null,
    cancels boolean not null,
    arrived_at bigint not null,
    created_at bigint not null
);
create unique index gate_place_of_run on gate_place (run_id) where job_id is null;
create index gate_place_by_gate on gate_place (gate_id, arrived_at, seq);
create index gate_place_waiting on gate_place (created_at) where not holding;

-- Somebody left a gate, or came to cancel others: its reconciler has to look.
create table gate_wake (
    seq integer primary key autoincrement,
    gate_id bigint not null,
    created_at bigint not null
);
create index gate_wake_by_gate on gate_wake (gate_id);

create table log_stream (
    job_id blob not null,
    attempt bigint not null,
    stream bigint not null,
    -- Everything before it is durable.
    to_byte bigint not null,
    primary key (job_id, attempt, stream)
);

-- Either `body`, or a place in a segment.
create table log_chunk (
    job_id blob not null,
    attempt bigint not null,
    stream bigint not null,
    from_byte bigint not null,
    len bigint not null,
    body blob,
    segment_id blob,
    segment_from bigint,
    marks text not null,
    primary key (job_id, attempt, stream, from_byte)
);

create table segment (
    id blob primary key,
    instance_id blob not null,
    created_at bigint not null
);

create table agent (
    id blob primary key,
    org text not null,
    name text not null,
    public_key text not null unique,
    token_id blob,
    labels text not null,
    slots bigint not null,
    containment text not null,
    boot_id text not null,
    software text not null,
    draining boolean not null,
    -- The coordinator it is connected to.
    instance_id blob,
    created_at bigint not null,
    seen_at bigint not null,
    revoked_at bigint,
    revoked_by text
);

create table token (
    id blob primary key,
    org text not null,
    kind text not null,
    role text,
    name text not null,
    hash blob not null unique,
    -- Absent: as often as one likes.
    uses_left bigint,
    created_by text not null,
    created_at bigint not null,
    expires_at bigint,
    used_at bigint,
    revoked_at bigint
);

create table lease (
    name text primary key,
    holder blob not null,
    epoch bigint not null,
    until_at bigint not null
);
create unique index lease_epoch on lease (name, epoch);

create table instance (
    id blob primary key,
    name text not null,
    url text,
    software text not null,
    started_at bigint not null,
    beat_at bigint not null
);

create table access_log (
    seq integer primary key autoincrement,
    at bigint not null,
    org text not null,
    actor text not null,
    action text not null,
    subject text not null,
    detail text,
    address text
);

-- What others are to be told.
create table outbox (
    seq integer primary key autoincrement,
    org text not null,
    run_id blob not null,
    state text not null,
    owner blob,
    next_at bigint not null,
    tries bigint not null,
    error text,
    created_at bigint not null,
    done_at bigint
);
create index outbox_due on outbox (next_at) where done_at is null;
