-- Tables and functions of the database that several servers share; see grpo/serving/shared/database.py.
-- Every function is one atomic step, and takes its time from the database, so that clocks of servers do not matter.

CREATE TABLE pods (
    id uuid PRIMARY KEY,
    number serial, -- of the advisory lock that its connection holds while its process lives
    expires timestamptz NOT NULL,
    versions jsonb NOT NULL -- [{"version", "policy", "tools", "idle_s"}] that it has loaded
);

CREATE TABLE turns (
    id text PRIMARY KEY,
    conversation text NOT NULL,
    owner text NOT NULL,
    subject text NOT NULL, -- digest of the conversation's id, as erasures name it
    person text, -- digest of the user's hash, as erasures name it
    parent text,
    digest text NOT NULL,
    repeated boolean NOT NULL,
    successors integer NOT NULL DEFAULT 0,
    version text NOT NULL,
    policy text NOT NULL,
    tokens integer NOT NULL,
    used timestamptz NOT NULL DEFAULT now(),
    state bytea NOT NULL
);
CREATE INDEX ON turns (digest);
CREATE INDEX ON turns (conversation);
CREATE INDEX ON turns (used);

CREATE TABLE conversations (
    id text PRIMARY KEY,
    owner text NOT NULL,
    subject text NOT NULL,
    last_turn text REFERENCES turns ON DELETE CASCADE, -- null until its first turn is answered
    used timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON conversations (last_turn);
CREATE INDEX ON conversations (used);

CREATE TABLE leases ( -- requests in progress; the one of a dead server says that its answer may not have been sent
    id uuid PRIMARY KEY,
    turn text REFERENCES turns ON DELETE CASCADE, -- that it goes on from; null for one that continues no turn
    conversation text, -- of a request that continues no turn
    pod uuid NOT NULL,
    answer text REFERENCES turns ON DELETE CASCADE, -- null until it is answered
    begun timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON leases (turn);
CREATE INDEX ON leases (conversation);
CREATE INDEX ON leases (answer);

CREATE TABLE requests ( -- admitted ones: in the window of a minute, running, or both
    id uuid PRIMARY KEY,
    caller text NOT NULL,
    pod uuid NOT NULL,
    entered bigserial,
    expires double precision, -- null outside of the window
    tokens bigint NOT NULL DEFAULT 0,
    taken bigint NOT NULL DEFAULT 0, -- from budgets
    periods text[] NOT NULL DEFAULT '{}',
    running boolean NOT NULL
);
CREATE INDEX ON requests (caller);

CREATE TABLE budgets (
    caller text,
    period text, -- 2026-11-22 or 2026-11, UTC
    tokens bigint NOT NULL,
    PRIMARY KEY (caller, period)
);

CREATE FUNCTION live_pods() RETURNS uuid[] LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(pods.id), '{}') FROM pods
    JOIN pg_locks ON locktype = 'advisory' AND classid = 1735553135 AND objid = number::oid AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    WHERE expires > now()
$$;

-- Usage of a caller as a request of p_tokens meets it; call it with the caller's lock.
CREATE FUNCTION usage_of(
    p_caller text, p_now double precision, p_tokens bigint, p_requests integer, p_window bigint,
    p_periods text[], p_budgets bigint[],
    OUT requests bigint, OUT tokens bigint, OUT running bigint, OUT reset_s double precision,
    OUT request_wait_s double precision, OUT tokens_wait_s double precision, OUT exhausted text, OUT used bigint
) LANGUAGE plpgsql AS $$
DECLARE
    over bigint;
    pods uuid[];
BEGIN
    SELECT count(*) FILTER (WHERE r.expires > p_now), coalesce(sum(r.tokens) FILTER (WHERE r.expires > p_now), 0),
        coalesce(max(r.expires) - p_now, 0)
    INTO requests, tokens, reset_s FROM requests r WHERE r.caller = p_caller;
    reset_s := greatest(reset_s, 0);
    pods := live_pods();
    SELECT count(*) INTO running FROM requests r WHERE r.caller = p_caller AND r.running AND r.pod = ANY (pods);
    request_wait_s := 0;
    IF requests >= p_requests THEN
        SELECT r.expires - p_now INTO request_wait_s FROM requests r WHERE r.caller = p_caller AND r.expires > p_now
        ORDER BY r.expires, r.entered OFFSET requests - p_requests LIMIT 1;
    END IF;
    tokens_wait_s := 0;
    over := tokens + p_tokens - p_window;
    IF p_tokens > p_window THEN
        tokens_wait_s := 'Infinity';
    ELSIF over > 0 THEN
        SELECT min(w.expires) - p_now INTO tokens_wait_s FROM (
            SELECT r.expires, sum(r.tokens) OVER (ORDER BY r.expires, r.entered) AS freed
            FROM requests r WHERE r.caller = p_caller AND r.expires > p_now
        ) w WHERE w.freed >= over;
    END IF;
    FOR k IN 1 .. coalesce(cardinality(p_periods), 0) LOOP
        used := coalesce((SELECT b.tokens FROM budgets b WHERE b.caller = p_caller AND b.period = p_periods[k]), 0);
        IF used + p_tokens > p_budgets[k] THEN
            exhausted := p_periods[k];
            EXIT;
        END IF;
    END LOOP;
    used := coalesce(used, 0);
END
$$;

-- What usage_of returns, as the steps of a request return it.
CREATE TYPE usage AS (
    requests bigint, tokens bigint, running bigint, reset_s double precision,
    request_wait_s double precision, tokens_wait_s double precision, exhausted text, used bigint
);

-- One step of a request: p_step is look, enter or take. p_now is null for the time of the database.
CREATE FUNCTION limit_step(
    p_step text, p_id uuid, p_pod uuid, p_caller text, p_now double precision, p_tokens bigint,
    p_parallel integer, p_requests integer, p_window bigint, p_periods text[], p_budgets bigint[]
) RETURNS SETOF usage LANGUAGE plpgsql AS $$
DECLARE
    moment double precision;
    met record;
    fits boolean;
    ends double precision;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(p_caller, 1));
    moment := coalesce(p_now, extract(epoch FROM clock_timestamp()));
    met := usage_of(p_caller, moment, p_tokens, p_requests, p_window, p_periods, p_budgets);
    fits := met.tokens_wait_s <= 0 AND met.exhausted IS NULL;
    IF p_requests IS NOT NULL OR p_window IS NOT NULL THEN
        ends := moment + 60;
    END IF;
    IF p_step = 'enter' AND fits AND met.request_wait_s <= 0 AND (p_parallel IS NULL OR met.running < p_parallel) THEN
        DELETE FROM requests r WHERE r.caller = p_caller AND coalesce(r.expires, 0) <= moment
            AND NOT (r.running AND r.pod = ANY (live_pods()));
        INSERT INTO requests (id, caller, pod, expires, running) VALUES (p_id, p_caller, p_pod, ends, true);
    ELSIF p_step = 'take' AND fits THEN
        UPDATE requests r SET expires = ends, tokens = p_tokens, taken = p_tokens, periods = p_periods,
            entered = nextval(pg_get_serial_sequence('requests', 'entered')) WHERE r.id = p_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'request % of the limits is gone', p_id;
        END IF;
        INSERT INTO budgets AS b SELECT p_caller, period, p_tokens FROM unnest(p_periods) AS period
            ON CONFLICT (caller, period) DO UPDATE SET tokens = b.tokens + excluded.tokens;
        met := usage_of(p_caller, moment, 0, p_requests, p_window, '{}', '{}');
    END IF;
    RETURN QUERY SELECT met.requests, met.tokens, met.running, met.reset_s, met.request_wait_s, met.tokens_wait_s,
        met.exhausted, met.used;
END
$$;

-- End of a request: p_used tokens, or null for one that is cancelled. A second end changes nothing.
CREATE FUNCTION limit_end(
    p_id uuid, p_caller text, p_now double precision, p_used bigint, p_requests integer, p_window bigint
) RETURNS SETOF usage LANGUAGE plpgsql AS $$
DECLARE
    moment double precision;
    ended requests%ROWTYPE;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(p_caller, 1));
    moment := coalesce(p_now, extract(epoch FROM clock_timestamp()));
    SELECT * INTO ended FROM requests r WHERE r.id = p_id AND r.running;
    IF FOUND THEN
        IF p_used IS NULL OR coalesce(ended.expires, 0) <= moment THEN
            DELETE FROM requests r WHERE r.id = p_id;
        ELSE
            UPDATE requests r SET running = false, tokens = p_used WHERE r.id = p_id;
        END IF;
        UPDATE budgets b SET tokens = b.tokens + coalesce(p_used, 0) - ended.taken
        WHERE b.caller = p_caller AND b.period = ANY (ended.periods);
    END IF;
    RETURN QUERY SELECT * FROM usage_of(p_caller, moment, 0, p_requests, p_window, '{}', '{}');
END
$$;

-- True while a request continues the turn, or answers the conversation without continuing a turn of it.
CREATE FUNCTION in_progress(p_turn text, p_conversation text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM leases WHERE pod = ANY (live_pods())
        AND (turn = p_turn OR (conversation = p_conversation AND answer IS NULL)))
$$;

-- A request that continues no turn: a first one, or the first one of another version (p_last is the turn before it).
CREATE FUNCTION open_conversation(
    p_id text, p_owner text, p_subject text, p_pod uuid, p_lease uuid, p_last text, p_by_id boolean
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(p_id, 2));
    PERFORM FROM turns WHERE id = p_last FOR UPDATE;
    IF p_last IS NOT NULL AND NOT FOUND THEN
        RETURN 'gone'; -- erased, or dropped by another server
    END IF;
    IF p_by_id AND in_progress(p_last, p_id) THEN
        RETURN 'busy';
    END IF;
    IF p_by_id AND EXISTS (SELECT FROM conversations WHERE id = p_id AND last_turn IS DISTINCT FROM p_last) THEN
        RETURN 'gone';
    END IF;
    INSERT INTO conversations (id, owner, subject) VALUES (p_id, p_owner, p_subject)
        ON CONFLICT (id) DO UPDATE SET used = now();
    INSERT INTO leases (id, pod, conversation) VALUES (p_lease, p_pod, p_id);
    RETURN 'first';
END
$$;

-- A request that goes on from a turn. p_by_id for one that named its conversation, which has one turn at a time.
CREATE FUNCTION begin_turn(p_turn text, p_pod uuid, p_lease uuid, p_by_id boolean) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    followed integer;
    name text;
BEGIN
    SELECT successors, conversation INTO followed, name FROM turns WHERE id = p_turn FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'gone';
    END IF;
    IF p_by_id AND NOT EXISTS (SELECT FROM conversations WHERE id = name AND last_turn = p_turn) THEN
        RETURN 'gone';
    END IF;
    IF in_progress(p_turn, name) THEN
        IF p_by_id THEN
            RETURN 'busy';
        END IF;
        followed := followed + 1;
    END IF;
    INSERT INTO leases (id, turn, pod) VALUES (p_lease, p_turn, p_pod);
    RETURN CASE WHEN followed > 0 THEN 'fork' ELSE 'first' END;
END
$$;

-- An answered turn. False where p_expects, and p_parent is not the last turn any more: a server was thought dead.
CREATE FUNCTION end_turn(
    p_id text, p_conversation text, p_owner text, p_subject text, p_person text, p_digest text, p_version text,
    p_policy text, p_tokens integer, p_state bytea, p_parent text, p_is_last boolean, p_expects boolean, p_lease uuid
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM turns WHERE id = p_id) THEN
        RETURN true; -- the answer to the first attempt was lost
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(p_conversation, 2));
    IF p_expects AND p_is_last AND NOT EXISTS (
        SELECT FROM conversations WHERE id = p_conversation AND last_turn IS NOT DISTINCT FROM p_parent
    ) THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(p_digest, 3));
    UPDATE turns SET repeated = true WHERE digest = p_digest;
    INSERT INTO turns (id, conversation, owner, subject, person, parent, digest, repeated, version, policy, tokens, state)
        VALUES (p_id, p_conversation, p_owner, p_subject, p_person, p_parent, p_digest, FOUND, p_version, p_policy,
                p_tokens, p_state);
    UPDATE turns SET successors = successors + 1, used = now() WHERE id = p_parent;
    IF p_is_last THEN
        INSERT INTO conversations VALUES (p_conversation, p_owner, p_subject, p_id)
            ON CONFLICT (id) DO UPDATE SET last_turn = p_id, used = now();
        UPDATE leases SET answer = p_id WHERE id = p_lease;
    END IF;
    RETURN true;
END
$$;

-- Drop what is older than p_hours, and the least recently used turns above p_tokens of all together.
CREATE FUNCTION tidy(p_hours double precision, p_tokens bigint, p_ids bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    oldest timestamptz := now() - p_hours * interval '1 hour';
BEGIN
    IF NOT pg_try_advisory_xact_lock(1735553135, 0) THEN
        RETURN; -- another server does it
    END IF;
    DELETE FROM turns WHERE used < oldest;
    DELETE FROM conversations WHERE used < oldest;
    IF (SELECT sum(tokens) FROM turns) > p_tokens THEN
        DELETE FROM turns WHERE id IN (
            SELECT id FROM (SELECT id, sum(tokens) OVER (ORDER BY used DESC, id) AS kept FROM turns) t
            WHERE kept > p_tokens
        );
    END IF;
    DELETE FROM conversations WHERE id IN (
        SELECT id FROM conversations WHERE last_turn IS NULL ORDER BY used DESC OFFSET p_ids
    );
    DELETE FROM leases WHERE NOT pod = ANY (live_pods()) AND begun < now() - interval '1 hour';
    DELETE FROM requests WHERE coalesce(expires, 0) <= extract(epoch FROM now()) AND NOT (running AND pod = ANY (live_pods()));
    DELETE FROM pods WHERE expires < now() - interval '1 minute';
    DELETE FROM budgets WHERE period < to_char(now() AT TIME ZONE 'UTC' - interval '62 days', 'YYYY-MM-DD');
END
$$;
