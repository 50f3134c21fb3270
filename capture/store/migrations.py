"""The stored format's ladder: one step a version, climbed in order, each in one transaction.

Rules. A step is append-only: once released it is never edited, for files in the field have climbed it. It is SQL text
alone, so that it doesn't change with the code around it. `PRAGMA user_version` is the rung a file stands on. A file
from above the ladder is refused before anything is changed in it. docs/store.md says what each column holds.
"""

from __future__ import annotations

import apsw

from capture.errors import StoreError
from capture.store import query
from capture.store.base import FORMAT_VERSION

APPLICATION_ID = 0x54524E47
"""`PRAGMA application_id` of our files ("TRNG"), so that another program's database isn't taken for an empty store."""

# 0 → 1. Small columns stand before large ones: SQLite reads a row up to the last column that is asked for, and large
# values lie on pages of their own. Rows that belong to a rollout go with it (CASCADE); content, which rollouts share,
# is swept by the one who deletes.
_FIRST = """
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counter VALUES ('created', 0), ('closed', 0);

CREATE TABLE rollout (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  version INTEGER NOT NULL,
  created INTEGER NOT NULL UNIQUE,
  closed INTEGER UNIQUE,
  state TEXT NOT NULL,
  "group" TEXT,
  first_call_at TEXT,
  last_call_at TEXT,
  secret BLOB NOT NULL,
  tools_secret BLOB NOT NULL,
  record TEXT NOT NULL,
  registration TEXT NOT NULL
);
CREATE UNIQUE INDEX rollout_secret ON rollout (secret);
CREATE UNIQUE INDEX rollout_tools_secret ON rollout (tools_secret);
CREATE INDEX rollout_group ON rollout ("group") WHERE "group" IS NOT NULL;

CREATE TABLE label (
  rollout INTEGER NOT NULL REFERENCES rollout ON DELETE CASCADE,
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (rollout, name)
) WITHOUT ROWID;
CREATE INDEX label_value ON label (name, value, rollout);

CREATE TABLE answer (
  key BLOB PRIMARY KEY,
  body TEXT NOT NULL,
  until TEXT NOT NULL,
  sealed BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE content (
  key INTEGER PRIMARY KEY,
  digest BLOB NOT NULL UNIQUE,
  packed TEXT,
  data BLOB NOT NULL
);

CREATE TABLE use (
  rollout INTEGER NOT NULL REFERENCES rollout ON DELETE CASCADE,
  content INTEGER NOT NULL REFERENCES content,
  PRIMARY KEY (rollout, content)
) WITHOUT ROWID;
CREATE INDEX use_content ON use (content, rollout);

CREATE TABLE chain (
  key INTEGER PRIMARY KEY,
  rollout INTEGER NOT NULL REFERENCES rollout ON DELETE CASCADE,
  parent INTEGER,
  content INTEGER NOT NULL,
  digest BLOB NOT NULL
);
CREATE UNIQUE INDEX chain_digest ON chain (rollout, digest);

CREATE TABLE call (
  key INTEGER PRIMARY KEY,
  rollout INTEGER NOT NULL REFERENCES rollout ON DELETE CASCADE,
  n INTEGER NOT NULL,
  status TEXT NOT NULL,
  delivered INTEGER,
  arrived INTEGER NOT NULL,
  ended INTEGER,
  chain INTEGER,
  messages INTEGER,
  holder INTEGER,
  shared INTEGER,
  n_prompt INTEGER,
  n_sampled INTEGER,
  check_prompt INTEGER,
  record TEXT NOT NULL,
  logprobs BLOB,
  sampled BLOB,
  tail BLOB
);
CREATE UNIQUE INDEX call_n ON call (rollout, n);
CREATE INDEX call_running ON call (rollout) WHERE status = 'running';

CREATE TABLE spool (
  rollout INTEGER NOT NULL REFERENCES rollout ON DELETE CASCADE,
  n INTEGER NOT NULL,
  logprobs BLOB,
  sampled BLOB,
  PRIMARY KEY (rollout, n)
);

CREATE TABLE exchange (
  rollout INTEGER NOT NULL REFERENCES rollout ON DELETE CASCADE,
  n INTEGER NOT NULL,
  top_logprobs INTEGER,
  undecoded INTEGER,
  error TEXT,
  deliveries TEXT NOT NULL DEFAULT '[]',
  usage BLOB,
  request BLOB NOT NULL,
  sent BLOB,
  reply BLOB,
  PRIMARY KEY (rollout, n)
);

CREATE TABLE notice (
  key INTEGER PRIMARY KEY,
  rollout INTEGER NOT NULL REFERENCES rollout ON DELETE CASCADE,
  record TEXT NOT NULL
);
CREATE INDEX notice_rollout ON notice (rollout, key);

CREATE TABLE probe (data BLOB NOT NULL);
"""

# 1 → 2. What several processes have to agree on: a rollout's next number and counter, its seal, what it has spent, the
# calls that arrived and have no row of their own yet, and what the operator said of engines.
_SECOND = """
ALTER TABLE rollout ADD COLUMN sealed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX rollout_sealed ON rollout (key) WHERE sealed > 0 AND state = 'open';
ALTER TABLE rollout ADD COLUMN next INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rollout ADD COLUMN tick INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rollout ADD COLUMN sampled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rollout ADD COLUMN new_tokens INTEGER NOT NULL DEFAULT 0;
UPDATE rollout SET
  next = (SELECT coalesce(max(n) + 1, 0) FROM call WHERE call.rollout = rollout.key),
  tick = (SELECT coalesce(max(max(arrived, coalesce(ended, 0))) + 1, 0) FROM call WHERE call.rollout = rollout.key),
  sampled = (
    SELECT count(*) FROM call WHERE call.rollout = rollout.key AND status IN ('complete', 'aborted')
    AND json_extract(call.record, '$.choice') IS NULL
  ),
  new_tokens = (
    SELECT coalesce(sum(
      coalesce(n_sampled, json_extract(call.record, '$.usage_sampled'), 0)
      + iif(json_extract(call.record, '$.choice') IS NULL, coalesce(n_prompt, 0) - coalesce(shared, 0), 0)
    ), 0) FROM call WHERE call.rollout = rollout.key AND status <> 'running'
  );

CREATE TABLE arrival (
  rollout INTEGER NOT NULL REFERENCES rollout ON DELETE CASCADE,
  n INTEGER NOT NULL,
  PRIMARY KEY (rollout, n)
) WITHOUT ROWID;

CREATE TABLE engine (name TEXT PRIMARY KEY, held INTEGER NOT NULL, version TEXT) WITHOUT ROWID;
"""

# 2 → 3. What a rollout's tool servers keep with it.
_THIRD = """
CREATE TABLE state (
  rollout INTEGER PRIMARY KEY REFERENCES rollout ON DELETE CASCADE,
  version INTEGER NOT NULL,
  changed_at TEXT NOT NULL,
  data BLOB NOT NULL
);
"""

# 3 → 4. What happened, in order, kept for a day. Triggers write it, in the transaction that makes it true. The newest
# row is never deleted, so that no key is given twice; hence the order of the statements where a rollout goes.
_FOURTH = """
CREATE TABLE event (
  key INTEGER PRIMARY KEY,
  at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  name TEXT NOT NULL,
  id TEXT,
  n INTEGER,
  data TEXT
);
CREATE INDEX event_id ON event (id, key) WHERE id IS NOT NULL;
INSERT INTO counter VALUES ('event', 0);

CREATE TRIGGER event_registered AFTER INSERT ON rollout BEGIN
  INSERT INTO event (name, id) VALUES ('rollout.registered', new.id);
END;

CREATE TRIGGER event_closed AFTER UPDATE OF state ON rollout WHEN new.state <> old.state BEGIN
  INSERT INTO event (name, id) VALUES (iif(new.state = 'closed', 'rollout.closed', 'rollout.opened'), new.id);
END;

CREATE TRIGGER event_graded AFTER UPDATE OF record ON rollout
  WHEN new.record <> old.record AND (
    json_extract(new.record, '$.reward') IS NOT json_extract(old.record, '$.reward')
    OR json_extract(new.record, '$.per_call_rewards') IS NOT json_extract(old.record, '$.per_call_rewards')
    OR json_extract(new.record, '$.reward_details') IS NOT json_extract(old.record, '$.reward_details')
  )
BEGIN
  INSERT INTO event (name, id) VALUES ('rollout.graded', new.id);
END;

CREATE TRIGGER event_deleted AFTER DELETE ON rollout BEGIN
  INSERT INTO event (name, id) VALUES ('rollout.deleted', old.id);
  DELETE FROM event WHERE id = old.id AND name <> 'rollout.deleted';
END;

CREATE TRIGGER event_begun AFTER INSERT ON call BEGIN
  INSERT INTO event (name, id, n)
    SELECT iif(new.status = 'running', 'call.begun', 'call.ended'), rollout.id, new.n FROM rollout
    WHERE rollout.key = new.rollout;
END;

CREATE TRIGGER event_ended AFTER UPDATE OF status ON call WHEN new.status <> old.status AND new.status <> 'running'
BEGIN
  INSERT INTO event (name, id, n) SELECT 'call.ended', rollout.id, new.n FROM rollout WHERE rollout.key = new.rollout;
END;

CREATE TRIGGER event_noticed AFTER INSERT ON notice BEGIN
  INSERT INTO event (name, id, data) SELECT 'finding', rollout.id, new.record FROM rollout
    WHERE rollout.key = new.rollout;
END;
"""

# 4 → 5. What a rollout's graph said at one version of it, so that a list of many needs no graph. Whoever has the
# version of the rollout itself beside it knows whether it still holds. Sums go over narrow rows alone, so what a list
# shows lies in a table of its own, and an index has all that they need of a rollout; for the same reason a closed
# rollout's summary says of itself whether it is current (an open one's is not asked: it costs each call a look).
_FIFTH = """
CREATE TABLE summary (
  rollout INTEGER PRIMARY KEY REFERENCES rollout ON DELETE CASCADE,
  version INTEGER NOT NULL,
  current INTEGER NOT NULL,
  trouble INTEGER NOT NULL,
  incomplete INTEGER NOT NULL,
  stopped INTEGER NOT NULL,
  drifted INTEGER NOT NULL,
  calls INTEGER NOT NULL,
  sampled_tokens INTEGER NOT NULL,
  reward REAL
);

CREATE TABLE summary_text (
  rollout INTEGER PRIMARY KEY REFERENCES rollout ON DELETE CASCADE,
  until TEXT,
  deadline_s REAL,
  words TEXT NOT NULL,
  data BLOB NOT NULL
);

CREATE TABLE summary_finding (
  code TEXT NOT NULL,
  rollout INTEGER NOT NULL REFERENCES rollout ON DELETE CASCADE,
  level INTEGER NOT NULL,
  n INTEGER NOT NULL,
  PRIMARY KEY (code, rollout)
) WITHOUT ROWID;
CREATE INDEX summary_finding_rollout ON summary_finding (rollout);

CREATE INDEX rollout_created ON rollout (created, state, "group");

CREATE TRIGGER summary_behind AFTER UPDATE OF version ON rollout WHEN new.state = 'closed' BEGIN
  UPDATE summary SET current = 0 WHERE rollout = new.key AND current = 1;
END;
"""

# 5 → 6. Links are found by the one before them: those of one list lie side by side, where digests lay all over the
# index. A content may be a list of messages, and a reply may stand in its row; there are none yet.
_SIXTH = """
DROP INDEX chain_digest;
CREATE UNIQUE INDEX chain_next ON chain (rollout, parent, content);
"""

STEPS: tuple[str, ...] = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH)
"""`STEPS[i]` takes a file from version i to i + 1."""

assert len(STEPS) == FORMAT_VERSION


def version(db: apsw.Connection) -> int:
    """Return the rung that a file stands on; 0 for an empty one.

    Raises `StoreError`: `store_newer` for a file from above the ladder, `store_failed` for a database of another
    program.
    """
    found = query.value(db, "PRAGMA user_version")
    application = query.value(db, "PRAGMA application_id")
    tables = query.value(db, "SELECT count(*) FROM sqlite_schema")
    if application != APPLICATION_ID and (tables or found or application):
        raise StoreError(
            "store_failed",
            f"{db.filename} is a database of another program",
            hint="give --store the path of a Treering store, or of a file that doesn't exist yet",
        )
    if found > FORMAT_VERSION:
        raise StoreError(
            "store_newer",
            f"{db.filename} was written by a newer Treering: its format is {found}, this one reads up to "
            f"{FORMAT_VERSION}",
            hint="update Treering, or give --store another path",
        )
    return int(found)


def climb(db: apsw.Connection) -> int:
    """Bring a file to the newest version, one committed step at a time; return the version that it had.

    Raises `StoreError` as `version` does, before anything is changed.
    """
    found = version(db)
    for rung, step in enumerate(STEPS[found:], start=found + 1):
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute(step)
            db.execute(f"PRAGMA user_version = {rung}")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        except BaseException:  # whatever fails, the file stays as it was
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
    return found
