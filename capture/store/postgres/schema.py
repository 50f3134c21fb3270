"""The format's ladder on PostgreSQL: one step a version, climbed in order, each in one transaction.

Rules. As `capture.store.migrations`: a step is append-only, and SQL text alone. All that is ours lies in the schema
`treering`, so that a database can hold other things too. `format.version` is the rung; a database from above the ladder
is refused before anything is changed in it. Replicas that start at once climb one after the other, behind an advisory
lock. docs/store.md says what each column holds.

What differs from SQLite, and why. A content is named by its digest and not by a number, and a chain's link likewise: a
writer then knows every name before it asks the database anything, and a group of calls is written in a few statements.
Text that an agent or a trainer chose is either in JSON with escapes or in bytes, since PostgreSQL's text has no NUL.
"""

from __future__ import annotations

from capture.errors import StoreError
from capture.store.postgres.driver import Connection

VERSION = 4
"""Version of the format on PostgreSQL; it climbs by itself, not with the file's."""

LOCKS = 0x54524E47
"""First half of our advisory locks' names ("TRNG"); the second is one of these."""
MIGRATING, HOLDING, SWEEPING = 1, 2, 3

# 0 → 1. fillfactor leaves room on a rollout's page for the next version of its row, which changes with each call.
# Arrays and packed content are stored as they are (EXTERNAL): another compression would cost and bring little.
_FIRST = """
CREATE TABLE counter (name text PRIMARY KEY, value bigint NOT NULL);
INSERT INTO counter VALUES ('created', 0), ('closed', 0);

CREATE TABLE rollout (
  key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id text COLLATE "C" NOT NULL UNIQUE,
  version bigint NOT NULL,
  created bigint NOT NULL UNIQUE,
  closed bigint UNIQUE,
  state text NOT NULL,
  sealed smallint NOT NULL DEFAULT 0,
  next integer NOT NULL DEFAULT 0,
  tick bigint NOT NULL DEFAULT 0,
  sampled integer NOT NULL DEFAULT 0,
  new_tokens bigint NOT NULL DEFAULT 0,
  "group" text,
  first_call_at text COLLATE "C",
  last_call_at text COLLATE "C",
  secret bytea NOT NULL UNIQUE,
  tools_secret bytea NOT NULL UNIQUE,
  record text NOT NULL,
  registration text NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX rollout_group ON rollout USING hash ("group");
CREATE INDEX rollout_sealed ON rollout (key) WHERE sealed > 0 AND state = 'open';

CREATE TABLE label (
  rollout bigint NOT NULL REFERENCES rollout ON DELETE CASCADE,
  name text NOT NULL,
  value text NOT NULL
);
CREATE INDEX label_rollout ON label (rollout);
CREATE INDEX label_value ON label USING hash (value);

CREATE TABLE answer (
  key bytea PRIMARY KEY,
  body text NOT NULL,
  until text COLLATE "C" NOT NULL,
  sealed bytea NOT NULL
);

CREATE TABLE content (digest bytea PRIMARY KEY, packed text, data bytea NOT NULL);
ALTER TABLE content ALTER data SET STORAGE EXTERNAL;

CREATE TABLE use (
  rollout bigint NOT NULL REFERENCES rollout ON DELETE CASCADE,
  content bytea NOT NULL,
  PRIMARY KEY (rollout, content)
);
CREATE INDEX use_content ON use (content);

CREATE TABLE chain (
  rollout bigint NOT NULL REFERENCES rollout ON DELETE CASCADE,
  digest bytea NOT NULL,
  parent bytea,
  content bytea NOT NULL,
  PRIMARY KEY (rollout, digest)
);

CREATE TABLE call (
  rollout bigint NOT NULL REFERENCES rollout ON DELETE CASCADE,
  n integer NOT NULL,
  status text NOT NULL,
  choice integer NOT NULL,
  delivered boolean,
  arrived bigint NOT NULL,
  ended bigint,
  chain bytea,
  messages bytea,
  holder integer,
  shared integer,
  n_prompt integer,
  n_sampled integer,
  check_prompt bigint,
  spent integer NOT NULL,
  record text NOT NULL,
  logprobs bytea,
  sampled bytea,
  tail bytea,
  PRIMARY KEY (rollout, n)
);
ALTER TABLE call ALTER logprobs SET STORAGE EXTERNAL, ALTER sampled SET STORAGE EXTERNAL,
  ALTER tail SET STORAGE EXTERNAL;

CREATE TABLE spool (
  rollout bigint NOT NULL REFERENCES rollout ON DELETE CASCADE,
  n integer NOT NULL,
  logprobs bytea,
  sampled bytea,
  PRIMARY KEY (rollout, n)
);

CREATE TABLE exchange (
  rollout bigint NOT NULL REFERENCES rollout ON DELETE CASCADE,
  n integer NOT NULL,
  top_logprobs bytea,
  undecoded bytea,
  error text,
  deliveries text NOT NULL,
  usage bytea,
  request bytea NOT NULL,
  sent bytea,
  reply bytea,
  PRIMARY KEY (rollout, n)
);

CREATE TABLE notice (
  key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  rollout bigint NOT NULL REFERENCES rollout ON DELETE CASCADE,
  record text NOT NULL
);
CREATE INDEX notice_rollout ON notice (rollout, key);

CREATE TABLE running (
  rollout bigint NOT NULL REFERENCES rollout ON DELETE CASCADE,
  n integer NOT NULL,
  arrived bigint NOT NULL,
  process text NOT NULL,
  engine text,
  token bytea UNIQUE,
  PRIMARY KEY (rollout, n)
);
CREATE INDEX running_process ON running (process);

CREATE TABLE process (name text PRIMARY KEY, machine text, pid integer, started text, beat timestamptz NOT NULL);

CREATE TABLE engine (name text PRIMARY KEY, held boolean NOT NULL, version text);

CREATE TABLE probe (data bytea NOT NULL);
ALTER TABLE probe ALTER data SET STORAGE EXTERNAL;

-- A function, since each of its statements sees what was committed while the one before it waited for a lock: what is
-- spent, what runs and what is held are then those of the very moment at which the number is given out.
CREATE FUNCTION arrive(asked text, choices integer, moment text, of_process text, of_token bytea)
RETURNS TABLE (place integer, since bigint, entry rollout, runs bigint, names text[], holds boolean[], versions text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  -- Shared by arrivals, exclusive for a hold: when a hold is committed, every arrival that missed it is running.
  PERFORM pg_advisory_xact_lock_shared(1414680135, 2);
  -- The same arrival again, by one who never heard of the first try.
  SELECT n, arrived INTO place, since FROM running WHERE token = of_token;
  IF FOUND THEN
    SELECT rollout.* INTO entry FROM rollout JOIN running ON running.rollout = key WHERE token = of_token;
  ELSE
    UPDATE rollout SET next = next + greatest(choices, 1), tick = tick + 1,
      first_call_at = least(first_call_at, moment), last_call_at = greatest(last_call_at, moment)
      WHERE id = asked AND state = 'open' AND sealed = 0 RETURNING rollout.* INTO entry;
    IF NOT FOUND THEN
      RETURN;
    END IF;
    place := entry.next - greatest(choices, 1);
    since := entry.tick - 1;
    -- One that was thought dead is alive again.
    INSERT INTO process (name, beat) VALUES (of_process, now()) ON CONFLICT DO NOTHING;
    INSERT INTO running (rollout, n, arrived, process, token)
      VALUES (entry.key, place, since, of_process, of_token);
  END IF;
  SELECT count(*) INTO runs FROM running WHERE rollout = entry.key;
  SELECT array_agg(name ORDER BY name), array_agg(held ORDER BY name), array_agg(version ORDER BY name)
    INTO names, holds, versions FROM engine;
  RETURN NEXT;
END
$$;
"""

# 1 → 2. What a rollout's tool servers keep with it.
_SECOND = """
CREATE TABLE state (
  rollout bigint PRIMARY KEY REFERENCES rollout ON DELETE CASCADE,
  version bigint NOT NULL,
  changed_at text COLLATE "C" NOT NULL,
  data bytea NOT NULL
);
"""

# 2 → 3. What happened, in order, kept for a day. Triggers write it, in the transaction that makes it true; its number
# (`xid`) says with `key` where it stands. A record that PostgreSQL's JSON doesn't take (an Infinity) counts as graded
# when it changes.
_THIRD = """
CREATE TABLE event (
  xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
  key bigint GENERATED ALWAYS AS IDENTITY,
  at text COLLATE "C" NOT NULL
    DEFAULT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
  name text NOT NULL,
  id text COLLATE "C",
  n integer,
  data text,
  PRIMARY KEY (xid, key)
);
CREATE INDEX event_id ON event (id, xid, key) WHERE id IS NOT NULL;
CREATE TABLE event_floor (xid bigint NOT NULL, key bigint NOT NULL);
INSERT INTO event_floor VALUES (0, 0);

CREATE FUNCTION tell_registered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO treering.event (name, id) VALUES ('rollout.registered', new.id);
  RETURN NULL;
END
$$;
CREATE TRIGGER event_registered AFTER INSERT ON rollout FOR EACH ROW EXECUTE FUNCTION tell_registered();

CREATE FUNCTION tell_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO treering.event (name, id)
    VALUES (CASE new.state WHEN 'closed' THEN 'rollout.closed' ELSE 'rollout.opened' END, new.id);
  RETURN NULL;
END
$$;
CREATE TRIGGER event_closed AFTER UPDATE OF state ON rollout FOR EACH ROW
  WHEN (new.state <> old.state) EXECUTE FUNCTION tell_closed();

CREATE FUNCTION tell_graded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  -- An escape may stand for what this JSON does not take: a NUL, half a surrogate pair.
  now_ text := replace(new.record, '\\u', '/u');
  was text := replace(old.record, '\\u', '/u');
BEGIN
  BEGIN
    IF (now_::json -> 'reward')::text IS NOT DISTINCT FROM (was::json -> 'reward')::text
      AND (now_::json -> 'per_call_rewards')::text IS NOT DISTINCT FROM (was::json -> 'per_call_rewards')::text
      AND (now_::json -> 'reward_details')::text IS NOT DISTINCT FROM (was::json -> 'reward_details')::text
    THEN
      RETURN NULL;
    END IF;
  EXCEPTION WHEN data_exception THEN
    NULL;
  END;
  INSERT INTO treering.event (name, id) VALUES ('rollout.graded', new.id);
  RETURN NULL;
END
$$;
CREATE TRIGGER event_graded AFTER UPDATE OF record ON rollout FOR EACH ROW
  WHEN (new.record <> old.record) EXECUTE FUNCTION tell_graded();

CREATE FUNCTION tell_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM treering.event WHERE id = old.id AND name <> 'rollout.deleted';
  INSERT INTO treering.event (name, id) VALUES ('rollout.deleted', old.id);
  RETURN NULL;
END
$$;
CREATE TRIGGER event_deleted AFTER DELETE ON rollout FOR EACH ROW EXECUTE FUNCTION tell_deleted();

CREATE FUNCTION tell_call() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO treering.event (name, id, n)
    SELECT CASE new.status WHEN 'running' THEN 'call.begun' ELSE 'call.ended' END, rollout.id, new.n
    FROM treering.rollout WHERE rollout.key = new.rollout;
  RETURN NULL;
END
$$;
CREATE TRIGGER event_begun AFTER INSERT ON call FOR EACH ROW EXECUTE FUNCTION tell_call();
CREATE TRIGGER event_ended AFTER UPDATE OF status ON call FOR EACH ROW
  WHEN (new.status <> old.status AND new.status <> 'running') EXECUTE FUNCTION tell_call();

CREATE FUNCTION tell_notice() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO treering.event (name, id, data) SELECT 'finding', rollout.id, new.record FROM rollout
    WHERE rollout.key = new.rollout;
  RETURN NULL;
END
$$;
CREATE TRIGGER event_noticed AFTER INSERT ON notice FOR EACH ROW EXECUTE FUNCTION tell_notice();
"""

# 3 → 4. What a rollout's graph said at one version of it, so that a list of many needs no graph.
_FOURTH = """
CREATE TABLE summary (
  rollout bigint PRIMARY KEY REFERENCES rollout ON DELETE CASCADE,
  version bigint NOT NULL,
  current boolean NOT NULL,
  trouble boolean NOT NULL,
  incomplete boolean NOT NULL,
  stopped boolean NOT NULL,
  drifted integer NOT NULL,
  calls integer NOT NULL,
  sampled_tokens bigint NOT NULL,
  reward double precision
);

CREATE TABLE summary_text (
  rollout bigint PRIMARY KEY REFERENCES rollout ON DELETE CASCADE,
  until text COLLATE "C",
  deadline_s double precision,
  words text NOT NULL,
  data bytea NOT NULL
);

CREATE TABLE summary_finding (
  code text COLLATE "C" NOT NULL,
  rollout bigint NOT NULL REFERENCES rollout ON DELETE CASCADE,
  level smallint NOT NULL,
  n integer NOT NULL,
  PRIMARY KEY (code, rollout)
);
CREATE INDEX summary_finding_rollout ON summary_finding (rollout);

CREATE FUNCTION leave_behind() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE treering.summary SET current = false WHERE rollout = new.key AND current;
  RETURN NULL;
END
$$;
CREATE TRIGGER summary_behind AFTER UPDATE OF version ON rollout FOR EACH ROW
  WHEN (new.state = 'closed') EXECUTE FUNCTION leave_behind();
"""

STEPS: tuple[str, ...] = (_FIRST, _SECOND, _THIRD, _FOURTH)
"""`STEPS[i]` takes a database from version i to i + 1."""

assert len(STEPS) == VERSION


async def version(db: Connection) -> int:
    """Return the rung that a database stands on; 0 where there is nothing of ours.

    Raises `StoreError` `store_newer` for one from above the ladder.
    """
    if await db.fetchval("SELECT to_regclass('treering.format')") is None:
        return 0
    found = int(await db.fetchval("SELECT version FROM treering.format"))
    if found > VERSION:
        raise StoreError(
            "store_newer",
            f"the database was written by a newer Treering: its format is {found}, this one reads up to {VERSION}",
            hint="update Treering, or give --store another database",
        )
    return found


async def climb(db: Connection) -> int:
    """Bring a database to the newest version, one committed step at a time; return the version that it had.

    Raises `StoreError` as `version` does, before anything is changed.
    """
    await db.execute("SELECT pg_advisory_lock($1, $2)", LOCKS, MIGRATING)
    try:
        found = await version(db)
        for rung, step in enumerate(STEPS[found:], start=found + 1):
            async with db.transaction():
                if rung == 1:
                    # A schema that was made for us needs no right to make one.
                    if not await db.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'treering')"):
                        await db.execute("CREATE SCHEMA treering")
                    await db.execute("CREATE TABLE treering.format (version integer NOT NULL)")
                    await db.execute("INSERT INTO treering.format VALUES (0)")
                await db.execute("SET LOCAL search_path = treering")
                await db.execute(step)
                await db.execute("UPDATE format SET version = $1", rung)
    finally:
        if not db.is_closed():
            await db.execute("SELECT pg_advisory_unlock($1, $2)", LOCKS, MIGRATING)
    return found
