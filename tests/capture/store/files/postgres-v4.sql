CREATE SCHEMA treering;
CREATE TABLE treering.rollout (
    key bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    created bigint NOT NULL,
    closed bigint,
    state text NOT NULL,
    sealed smallint DEFAULT 0 NOT NULL,
    next integer DEFAULT 0 NOT NULL,
    tick bigint DEFAULT 0 NOT NULL,
    sampled integer DEFAULT 0 NOT NULL,
    new_tokens bigint DEFAULT 0 NOT NULL,
    "group" text,
    first_call_at text COLLATE pg_catalog."C",
    last_call_at text COLLATE pg_catalog."C",
    secret bytea NOT NULL,
    tools_secret bytea NOT NULL,
    record text NOT NULL,
    registration text NOT NULL
)
WITH (fillfactor='70');
CREATE FUNCTION treering.arrive(asked text, choices integer, moment text, of_process text, of_token bytea) RETURNS TABLE(place integer, since bigint, entry treering.rollout, runs bigint, names text[], holds boolean[], versions text[])
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION treering.leave_behind() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  UPDATE treering.summary SET current = false WHERE rollout = new.key AND current;
  RETURN NULL;
END
$$;
CREATE FUNCTION treering.tell_call() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  INSERT INTO treering.event (name, id, n)
    SELECT CASE new.status WHEN 'running' THEN 'call.begun' ELSE 'call.ended' END, rollout.id, new.n
    FROM treering.rollout WHERE rollout.key = new.rollout;
  RETURN NULL;
END
$$;
CREATE FUNCTION treering.tell_closed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  INSERT INTO treering.event (name, id)
    VALUES (CASE new.state WHEN 'closed' THEN 'rollout.closed' ELSE 'rollout.opened' END, new.id);
  RETURN NULL;
END
$$;
CREATE FUNCTION treering.tell_deleted() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  DELETE FROM treering.event WHERE id = old.id AND name <> 'rollout.deleted';
  INSERT INTO treering.event (name, id) VALUES ('rollout.deleted', old.id);
  RETURN NULL;
END
$$;
CREATE FUNCTION treering.tell_graded() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
  -- An escape may stand for what this JSON does not take: a NUL, half a surrogate pair.
  now_ text := replace(new.record, '\u', '/u');
  was text := replace(old.record, '\u', '/u');
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
CREATE FUNCTION treering.tell_notice() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  INSERT INTO treering.event (name, id, data) SELECT 'finding', rollout.id, new.record FROM rollout
    WHERE rollout.key = new.rollout;
  RETURN NULL;
END
$$;
CREATE FUNCTION treering.tell_registered() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  INSERT INTO treering.event (name, id) VALUES ('rollout.registered', new.id);
  RETURN NULL;
END
$$;
CREATE TABLE treering.answer (
    key bytea NOT NULL,
    body text NOT NULL,
    until text NOT NULL COLLATE pg_catalog."C",
    sealed bytea NOT NULL
);
CREATE TABLE treering.call (
    rollout bigint NOT NULL,
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
    tail bytea
);
ALTER TABLE ONLY treering.call ALTER COLUMN logprobs SET STORAGE EXTERNAL;
ALTER TABLE ONLY treering.call ALTER COLUMN sampled SET STORAGE EXTERNAL;
ALTER TABLE ONLY treering.call ALTER COLUMN tail SET STORAGE EXTERNAL;
CREATE TABLE treering.chain (
    rollout bigint NOT NULL,
    digest bytea NOT NULL,
    parent bytea,
    content bytea NOT NULL
);
CREATE TABLE treering.content (
    digest bytea NOT NULL,
    packed text,
    data bytea NOT NULL
);
ALTER TABLE ONLY treering.content ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE treering.counter (
    name text NOT NULL,
    value bigint NOT NULL
);
CREATE TABLE treering.engine (
    name text NOT NULL,
    held boolean NOT NULL,
    version text
);
CREATE TABLE treering.event (
    xid bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL,
    key bigint NOT NULL,
    at text DEFAULT to_char((clock_timestamp() AT TIME ZONE 'UTC'::text), 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'::text) NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL,
    id text COLLATE pg_catalog."C",
    n integer,
    data text
);
CREATE TABLE treering.event_floor (
    xid bigint NOT NULL,
    key bigint NOT NULL
);
ALTER TABLE treering.event ALTER COLUMN key ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME treering.event_key_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE treering.exchange (
    rollout bigint NOT NULL,
    n integer NOT NULL,
    top_logprobs bytea,
    undecoded bytea,
    error text,
    deliveries text NOT NULL,
    usage bytea,
    request bytea NOT NULL,
    sent bytea,
    reply bytea
);
CREATE TABLE treering.format (
    version integer NOT NULL
);
CREATE TABLE treering.label (
    rollout bigint NOT NULL,
    name text NOT NULL,
    value text NOT NULL
);
CREATE TABLE treering.notice (
    key bigint NOT NULL,
    rollout bigint NOT NULL,
    record text NOT NULL
);
ALTER TABLE treering.notice ALTER COLUMN key ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME treering.notice_key_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE treering.probe (
    data bytea NOT NULL
);
ALTER TABLE ONLY treering.probe ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE treering.process (
    name text NOT NULL,
    machine text,
    pid integer,
    started text,
    beat timestamp with time zone NOT NULL
);
ALTER TABLE treering.rollout ALTER COLUMN key ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME treering.rollout_key_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE treering.running (
    rollout bigint NOT NULL,
    n integer NOT NULL,
    arrived bigint NOT NULL,
    process text NOT NULL,
    engine text,
    token bytea
);
CREATE TABLE treering.spool (
    rollout bigint NOT NULL,
    n integer NOT NULL,
    logprobs bytea,
    sampled bytea
);
CREATE TABLE treering.state (
    rollout bigint NOT NULL,
    version bigint NOT NULL,
    changed_at text NOT NULL COLLATE pg_catalog."C",
    data bytea NOT NULL
);
CREATE TABLE treering.summary (
    rollout bigint NOT NULL,
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
CREATE TABLE treering.summary_finding (
    code text NOT NULL COLLATE pg_catalog."C",
    rollout bigint NOT NULL,
    level smallint NOT NULL,
    n integer NOT NULL
);
CREATE TABLE treering.summary_text (
    rollout bigint NOT NULL,
    until text COLLATE pg_catalog."C",
    deadline_s double precision,
    words text NOT NULL,
    data bytea NOT NULL
);
CREATE TABLE treering.use (
    rollout bigint NOT NULL,
    content bytea NOT NULL
);
INSERT INTO treering.call VALUES (1, 1, 'error', 0, NULL, 2, 3, '\xe87d7dab681908dbfb37dec516d6832c', NULL, 0, 5, 6, NULL, 2943289278, 1, '{"started_at":"2026-01-01T00:00:00.000Z"}', NULL, NULL, '\x06000000');
INSERT INTO treering.call VALUES (1, 0, 'complete', 0, true, 0, 1, '\x2f2fbbc31b80f003179b9e7627bcc72c', NULL, NULL, NULL, 3, 2, 2967478931, 5, '{"id":"chatcmpl-1","finish_reason":"stop","started_at":"2026-01-01T00:00:00.000Z"}', '\x000000bf0000c07f', '\x0400000005000000', '\x010000000200000003000000');
INSERT INTO treering.chain VALUES (1, '\x2f2fbbc31b80f003179b9e7627bcc72c', NULL, '\x904bdb4e2d18d5397c1d5510b5ba0663');
INSERT INTO treering.chain VALUES (1, '\x59ad8460a66308b6c0b22ff16f16af17', '\x2f2fbbc31b80f003179b9e7627bcc72c', '\x7ae43ebd6b476cf43eee72d4b0e65023');
INSERT INTO treering.chain VALUES (1, '\xe87d7dab681908dbfb37dec516d6832c', '\x59ad8460a66308b6c0b22ff16f16af17', '\xa40d25f409d0259cef8dbdbb53a485df');
INSERT INTO treering.content VALUES ('\x395824be5db86bc175e937768bca66b4', 'zlib', '\x78018bae562aa92c4855b252504a2bcd4b2ec9cccf53d241625b29542be525e64214806452528b938b320bc00a819a524601d121a0545b1b0b00795c8aee');
INSERT INTO treering.content VALUES ('\x3a35c4861d9f5e200807148de35adde8', 'zlib', '\x78018bae56cacc4b49ad50b25230d05150ca4d2d2e4e4c4f05f2aa9592f3f34a52f34a806ca58cd49c9c7c855192981050aaad8d050083627b63');
INSERT INTO treering.content VALUES ('\x904bdb4e2d18d5397c1d5510b5ba0663', NULL, '\x7b22726f6c65223a202275736572222c2022636f6e74656e74223a20226869227d');
INSERT INTO treering.content VALUES ('\x7ae43ebd6b476cf43eee72d4b0e65023', NULL, '\x7b22726f6c65223a2022617373697374616e74222c2022636f6e74656e74223a202268656c6c6f227d');
INSERT INTO treering.content VALUES ('\xa40d25f409d0259cef8dbdbb53a485df', NULL, '\x7b22726f6c65223a202275736572222c2022636f6e74656e74223a20226d6f7265227d');
INSERT INTO treering.counter VALUES ('created', 1);
INSERT INTO treering.counter VALUES ('closed', 1);
INSERT INTO treering.event OVERRIDING SYSTEM VALUE VALUES (731, 1, '2026-11-30T07:10:32.578Z', 'rollout.registered', 'old', NULL, NULL);
INSERT INTO treering.event OVERRIDING SYSTEM VALUE VALUES (732, 2, '2026-11-30T07:10:32.619Z', 'call.ended', 'old', 0, NULL);
INSERT INTO treering.event OVERRIDING SYSTEM VALUE VALUES (733, 3, '2026-11-30T07:10:32.640Z', 'call.ended', 'old', 1, NULL);
INSERT INTO treering.event OVERRIDING SYSTEM VALUE VALUES (734, 4, '2026-11-30T07:10:32.647Z', 'finding', 'old', NULL, '{"code":"request_refused","at":"2026-01-01T00:00:00.000Z","calls":[1],"data":{"field":"priority"}}');
INSERT INTO treering.event OVERRIDING SYSTEM VALUE VALUES (736, 5, '2026-11-30T07:10:32.657Z', 'rollout.closed', 'old', NULL, NULL);
INSERT INTO treering.event OVERRIDING SYSTEM VALUE VALUES (736, 6, '2026-11-30T07:10:32.657Z', 'rollout.graded', 'old', NULL, NULL);
INSERT INTO treering.event_floor VALUES (0, 0);
INSERT INTO treering.exchange VALUES (1, 1, NULL, NULL, '{"blame":"engine","status":500,"message":"no"}', '[]', NULL, '\x7b226669656c6473223a5b5b226d6f64656c222c2276616c7565222c226d225d2c5b226d65737361676573222c22636861696e222c226538376437646162363831393038646266623337646563353136643638333263225d2c5b22746f6f6c73222c22636f6e74656e74222c223339353832346265356462383662633137356539333737363862636136366234225d5d7d', NULL, NULL);
INSERT INTO treering.exchange VALUES (1, 0, NULL, NULL, NULL, '[{"at":"2026-01-01T00:00:01.000Z","complete":true}]', '\x7b2270726f6d70745f746f6b656e73223a337d', '\x7b226669656c6473223a5b5b226d6f64656c222c2276616c7565222c226d225d2c5b226d65737361676573222c22636861696e222c223266326662626333316238306630303331373962396537363237626363373263225d2c5b22746f6f6c73222c22636f6e74656e74222c223339353832346265356462383662633137356539333737363862636136366234225d2c5b2273656564222c2276616c7565222c3130303030303030303030303030303030303030305d5d7d', '\x7b22776974686f7574223a5b5d2c2277697468223a5b5b226c6f6770726f6273222c2276616c7565222c747275655d5d7d', '\x7b226669656c6473223a5b5b226964222c2276616c7565222c2263686174636d706c2d31225d2c5b2263686f69636573222c22636f6e74656e74222c223361333563343836316439663565323030383037313438646533356164646538225d5d7d');
INSERT INTO treering.format VALUES (4);
INSERT INTO treering.label VALUES (1, 'split', 'train');
INSERT INTO treering.notice OVERRIDING SYSTEM VALUE VALUES (1, 1, '{"code":"request_refused","at":"2026-01-01T00:00:00.000Z","calls":[1],"data":{"field":"priority"}}');
INSERT INTO treering.rollout OVERRIDING SYSTEM VALUE VALUES (1, 'old', 5, 1, 1, 'closed', 0, 2, 4, 1, 6, 'g', '2026-01-01T00:00:00.000Z', '2026-01-01T00:00:00.000Z', '\x6167656e74206f66206f6c64', '\x746f6f6c73206f66206f6c64', '{"id":"old","group":"g","labels":{"split":"train"},"state":"closed","reward":1.0,"task":"say hi","roles":{"0":"main"},"created_at":"2026-01-01T00:00:00.000Z","closed_at":"2026-01-01T00:00:00.000Z"}', '{}');
INSERT INTO treering.state VALUES (1, 1, '2026-01-01T00:00:00.000Z', '\x7b22626f617264223a205b312c20322e35305d7d');
INSERT INTO treering.summary VALUES (1, 5, true, true, false, false, 0, 2, 2, 1);
INSERT INTO treering.summary_finding VALUES ('engine_errors', 1, 1, 1);
INSERT INTO treering.summary_text VALUES (1, NULL, NULL, 'old
g
train', '\x7b226964223a226f6c64222c227374617465223a22636c6f736564222c226e5f63616c6c73223a322c22726577617264223a312e302c226865616c7468223a7b2266696e64696e6773223a7b22656e67696e655f6572726f7273223a317d7d7d');
INSERT INTO treering.use VALUES (1, '\x395824be5db86bc175e937768bca66b4');
INSERT INTO treering.use VALUES (1, '\x3a35c4861d9f5e200807148de35adde8');
INSERT INTO treering.use VALUES (1, '\x904bdb4e2d18d5397c1d5510b5ba0663');
INSERT INTO treering.use VALUES (1, '\x7ae43ebd6b476cf43eee72d4b0e65023');
INSERT INTO treering.use VALUES (1, '\xa40d25f409d0259cef8dbdbb53a485df');
SELECT pg_catalog.setval('treering.event_key_seq', 6, true);
SELECT pg_catalog.setval('treering.notice_key_seq', 1, true);
SELECT pg_catalog.setval('treering.rollout_key_seq', 1, true);
ALTER TABLE ONLY treering.answer
    ADD CONSTRAINT answer_pkey PRIMARY KEY (key);
ALTER TABLE ONLY treering.call
    ADD CONSTRAINT call_pkey PRIMARY KEY (rollout, n);
ALTER TABLE ONLY treering.chain
    ADD CONSTRAINT chain_pkey PRIMARY KEY (rollout, digest);
ALTER TABLE ONLY treering.content
    ADD CONSTRAINT content_pkey PRIMARY KEY (digest);
ALTER TABLE ONLY treering.counter
    ADD CONSTRAINT counter_pkey PRIMARY KEY (name);
ALTER TABLE ONLY treering.engine
    ADD CONSTRAINT engine_pkey PRIMARY KEY (name);
ALTER TABLE ONLY treering.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (xid, key);
ALTER TABLE ONLY treering.exchange
    ADD CONSTRAINT exchange_pkey PRIMARY KEY (rollout, n);
ALTER TABLE ONLY treering.notice
    ADD CONSTRAINT notice_pkey PRIMARY KEY (key);
ALTER TABLE ONLY treering.process
    ADD CONSTRAINT process_pkey PRIMARY KEY (name);
ALTER TABLE ONLY treering.rollout
    ADD CONSTRAINT rollout_closed_key UNIQUE (closed);
ALTER TABLE ONLY treering.rollout
    ADD CONSTRAINT rollout_created_key UNIQUE (created);
ALTER TABLE ONLY treering.rollout
    ADD CONSTRAINT rollout_id_key UNIQUE (id);
ALTER TABLE ONLY treering.rollout
    ADD CONSTRAINT rollout_pkey PRIMARY KEY (key);
ALTER TABLE ONLY treering.rollout
    ADD CONSTRAINT rollout_secret_key UNIQUE (secret);
ALTER TABLE ONLY treering.rollout
    ADD CONSTRAINT rollout_tools_secret_key UNIQUE (tools_secret);
ALTER TABLE ONLY treering.running
    ADD CONSTRAINT running_pkey PRIMARY KEY (rollout, n);
ALTER TABLE ONLY treering.running
    ADD CONSTRAINT running_token_key UNIQUE (token);
ALTER TABLE ONLY treering.spool
    ADD CONSTRAINT spool_pkey PRIMARY KEY (rollout, n);
ALTER TABLE ONLY treering.state
    ADD CONSTRAINT state_pkey PRIMARY KEY (rollout);
ALTER TABLE ONLY treering.summary_finding
    ADD CONSTRAINT summary_finding_pkey PRIMARY KEY (code, rollout);
ALTER TABLE ONLY treering.summary
    ADD CONSTRAINT summary_pkey PRIMARY KEY (rollout);
ALTER TABLE ONLY treering.summary_text
    ADD CONSTRAINT summary_text_pkey PRIMARY KEY (rollout);
ALTER TABLE ONLY treering.use
    ADD CONSTRAINT use_pkey PRIMARY KEY (rollout, content);
CREATE INDEX event_id ON treering.event USING btree (id, xid, key) WHERE (id IS NOT NULL);
CREATE INDEX label_rollout ON treering.label USING btree (rollout);
CREATE INDEX label_value ON treering.label USING hash (value);
CREATE INDEX notice_rollout ON treering.notice USING btree (rollout, key);
CREATE INDEX rollout_group ON treering.rollout USING hash ("group");
CREATE INDEX rollout_sealed ON treering.rollout USING btree (key) WHERE ((sealed > 0) AND (state = 'open'::text));
CREATE INDEX running_process ON treering.running USING btree (process);
CREATE INDEX summary_finding_rollout ON treering.summary_finding USING btree (rollout);
CREATE INDEX use_content ON treering.use USING btree (content);
CREATE TRIGGER event_begun AFTER INSERT ON treering.call FOR EACH ROW EXECUTE FUNCTION treering.tell_call();
CREATE TRIGGER event_closed AFTER UPDATE OF state ON treering.rollout FOR EACH ROW WHEN ((new.state <> old.state)) EXECUTE FUNCTION treering.tell_closed();
CREATE TRIGGER event_deleted AFTER DELETE ON treering.rollout FOR EACH ROW EXECUTE FUNCTION treering.tell_deleted();
CREATE TRIGGER event_ended AFTER UPDATE OF status ON treering.call FOR EACH ROW WHEN (((new.status <> old.status) AND (new.status <> 'running'::text))) EXECUTE FUNCTION treering.tell_call();
CREATE TRIGGER event_graded AFTER UPDATE OF record ON treering.rollout FOR EACH ROW WHEN ((new.record <> old.record)) EXECUTE FUNCTION treering.tell_graded();
CREATE TRIGGER event_noticed AFTER INSERT ON treering.notice FOR EACH ROW EXECUTE FUNCTION treering.tell_notice();
CREATE TRIGGER event_registered AFTER INSERT ON treering.rollout FOR EACH ROW EXECUTE FUNCTION treering.tell_registered();
CREATE TRIGGER summary_behind AFTER UPDATE OF version ON treering.rollout FOR EACH ROW WHEN ((new.state = 'closed'::text)) EXECUTE FUNCTION treering.leave_behind();
ALTER TABLE ONLY treering.call
    ADD CONSTRAINT call_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.chain
    ADD CONSTRAINT chain_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.exchange
    ADD CONSTRAINT exchange_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.label
    ADD CONSTRAINT label_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.notice
    ADD CONSTRAINT notice_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.running
    ADD CONSTRAINT running_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.spool
    ADD CONSTRAINT spool_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.state
    ADD CONSTRAINT state_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.summary_finding
    ADD CONSTRAINT summary_finding_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.summary
    ADD CONSTRAINT summary_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.summary_text
    ADD CONSTRAINT summary_text_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
ALTER TABLE ONLY treering.use
    ADD CONSTRAINT use_rollout_fkey FOREIGN KEY (rollout) REFERENCES treering.rollout(key) ON DELETE CASCADE;
