"""The schema: equal to the code, installed by migrations, guarded by constraints and roles."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from tests.support.protocol import Protocol, connected
from turnstile.common.domain.states import Status
from turnstile.common.statements import (
    SUBMITTER_FUNCTIONS,
    WORKER_FUNCTIONS,
    installation_text,
    protocol_hash,
)
from turnstile.common.tables import metadata
from turnstile.migrations.run import MigrationBlocked, alembic_config, engine_of, is_current, migrate
from turnstile.migrations.schema_check import SchemaVersion


async def test_the_enum_in_the_database_equals_the_enum_in_the_code(protocol: Protocol) -> None:
    labels = await protocol.column("SELECT unnest(enum_range(NULL::execution_status))::text")
    assert labels == [status.value for status in Status]


async def test_the_migrations_create_the_tables_of_the_code(database_url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    engine = engine_of(database_url)
    try:
        async with engine.connect() as connection:
            assert await connection.run_sync(differences) == []
    finally:
        await engine.dispose()


async def test_the_migrations_create_the_settings_constraints_and_indexes_of_the_code(
    database_url: str, empty_database_url: str
) -> None:
    # Alembic does not compare these: the catalogue after the migrations with that of the tables.
    engine = engine_of(empty_database_url)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await engine.dispose()
    async with connected(database_url) as migrated, connected(empty_database_url) as created:
        for query in (
            "SELECT relname || ' ' || array_to_string(array(SELECT unnest(reloptions) ORDER BY 1), ' ')"
            " FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            " AND relname <> 'alembic_version' AND reloptions IS NOT NULL ORDER BY 1",
            "SELECT conrelid::regclass || ' ' || conname || ' '"
            " || pg_get_constraintdef(oid)"
            " FROM pg_constraint WHERE connamespace = 'public'::regnamespace"
            # The protocol creates its triggers.
            " AND conrelid::regclass::text <> 'alembic_version' AND contype NOT IN ('n', 't') ORDER BY 1",
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
            " ORDER BY 1",
            "SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' '"
            " || coalesce(column_default, '-') FROM information_schema.columns"
            " JOIN information_schema.tables USING (table_schema, table_name) WHERE table_schema = 'public'"
            " AND table_type = 'BASE TABLE' AND table_name <> 'alembic_version' ORDER BY 1",
        ):
            found = await migrated.column(query)
            assert found == await created.column(query)
            assert found


_DELIVERY = (
    "INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at, state, attempts,"
    " claimed_until, settled_at) VALUES (1, 'u', 'o', now(), now(), {}, {}, {}, {})"
)
_LETTER = (
    "INSERT INTO dead_letter (fingerprint, code, error, exchange, routing_key, original_routing_key, tries,"
    " died_at, stored_at, headers, body, body_bytes, stored_bytes)"
    " SELECT 'f', 'c', 'e', '', '', '', {}, now(), now(), '{{}}', 'abc', {}, {} FROM generate_series(1, {})"
)
_EARLY = (
    "INSERT INTO early_cancel (messages, message_key, execution_id, idempotency_key, kept_until)"
    " SELECT '', md5('same')::uuid, {}, {}"
)
_GATE = "INSERT INTO gate (kind, name, {}) VALUES ({}, 'n', {})"
_GATE_STATE = (
    "INSERT INTO gate_state (gate_id, version, held, depth, head_id, virtual_times, starts_taken,"
    " granted_capacity, updated_at) VALUES (1, 1, {}, {}, 0, '{{0,0,0,0,0}}', 0, {}, now())"
)
_TOKEN = "INSERT INTO api_token (name, role, scope, digest) SELECT 'n', {}, {}, '' {}"
_SUBMISSION = "INSERT INTO submission VALUES (gen_random_uuid(), {}, repeat('x', {}), now())"
_OVERRIDE = "INSERT INTO key_override (action_id, concurrency_key, {}) SELECT {}, '', {} FROM action"
VIOLATIONS = {
    "ck_action_limit_not_negative": "UPDATE action SET max_concurrent = -1",
    "ck_action_max_queued_not_negative": "UPDATE action SET max_queued = -1",
    "ck_action_durations_not_negative": "UPDATE action SET ttl_seconds = -1",
    "ck_action_runner_known": "UPDATE action SET runner = 'cobol'",
    "ck_action_on_worker_lost_known": "UPDATE action SET on_worker_lost = 'pray'",
    "ck_action_when_full_known": "UPDATE action SET when_full = 'burst'",
    "ck_action_counts_not_negative": "UPDATE action SET retry_max_attempts = 0",
    "uq_action_ref": "INSERT INTO action (ref, retry_delay_seconds) SELECT ref, 1 FROM action",
    "ck_audit_log_channel_known": "INSERT INTO audit_log (verb, subject_kind, subject, channel)"
    " VALUES ('paused', 'action', 'a', 'pigeon')",
    "uq_api_token_digest": _TOKEN.format("'read'", "NULL", "FROM generate_series(1, 2)"),
    "ck_api_token_role_known": _TOKEN.format("'god'", "NULL", ""),
    "ck_api_token_scope_not_empty": _TOKEN.format("'read'", "'{}'::text[]", ""),
    "ck_api_token_admin_without_scope": _TOKEN.format("'admin'", "'{a}'::text[]", ""),
    "ck_queue_state_depth_not_negative": "UPDATE queue_state SET depth = -1",
    "ck_queue_state_held_not_negative": "UPDATE queue_state SET held = -1",
    "ck_queue_state_grant_within_limit": "UPDATE queue_state SET granted_limit = held - 1",
    "ck_queue_state_totals_ordered": "UPDATE queue_state SET total_completed = total_enqueued + 1",
    "ck_action_queue_limit_not_negative": "UPDATE action_queue SET max_concurrent = -1",
    "uq_action_queue_action_id_concurrency_key": "INSERT INTO action_queue (action_id) SELECT id FROM action",
    "fk_action_queue_action_id": "UPDATE action_queue SET action_id = 0",
    "ck_execution_attempt_not_negative": "UPDATE execution SET status = 'queued', attempt = -1",
    "ck_execution_completed_at_iff_terminal": "UPDATE execution SET completed_at = now()",
    "ck_execution_granted_in_slot": "UPDATE execution SET status = 'running'",
    "ck_execution_result_only_when_completed": "UPDATE execution SET result = '1'",
    "ck_execution_parameters_are_an_object": "UPDATE execution SET parameters = '[]'",
    "ck_execution_metadata_is_an_object": "UPDATE execution SET metadata = '1'",
    "uq_action_schema_action_id_content_hash": "INSERT INTO action_schema (action_id, content_hash)"
    " SELECT id, 'same' FROM action, generate_series(1, 2)",
    "fk_action_schema_action_id": "INSERT INTO action_schema (action_id, content_hash) VALUES (0, 'x')",
    "uq_execution_idempotency_key": "UPDATE execution SET idempotency_key = 'k'",
    "uq_execution_delivery_key": "UPDATE execution SET delivery_key = md5('same')::uuid",
    "ck_attempt_attempt_positive": "INSERT INTO attempt (execution_id, attempt, worker_id, outcome,"
    " granted_at, started_at, ended_at) VALUES (1, 0, 'w', 'failed', now(), now(), now())",
    "ck_attempt_progress_amounts_are_finite": "INSERT INTO attempt_progress"
    " (execution_id, attempt, version, done, updated_at) VALUES (1, 1, 1, -1, now())",
    "ck_slot_attempt_positive": "UPDATE slot SET attempt = 0",
    "ck_slot_claimed_by_a_worker": "UPDATE slot SET worker_id = 'w'",
    "uq_slot_ticket": "UPDATE slot SET ticket = 1",
    "ck_action_keeps_not_negative": "UPDATE action SET keep_count = -1",
    "ck_webhook_delivery_state_known": _DELIVERY.format("'lost'", 1, "NULL", "now()"),
    "ck_webhook_delivery_settled_iff_not_pending": _DELIVERY.format("'pending'", 1, "NULL", "now()"),
    "ck_webhook_delivery_claimed_while_pending": _DELIVERY.format("'failed'", 1, "now()", "now()"),
    "ck_webhook_delivery_attempts_not_negative": _DELIVERY.format("'pending'", -1, "NULL", "NULL"),
    "uq_dead_letter_fingerprint": _LETTER.format(0, 3, 3, 2),
    "ck_dead_letter_tries_not_negative": _LETTER.format(-1, 3, 3, 1),
    "ck_dead_letter_body_within_its_size": _LETTER.format(0, 2, 3, 1),
    "ck_dead_letter_body_within_what_is_stored": _LETTER.format(0, 3, 2, 1),
    "ck_pruned_count_executions_not_negative": "INSERT INTO pruned_count VALUES (1, -1)",
    "ck_early_cancel_names_one_execution": _EARLY.format("1, 'k'", "now()"),
    "uq_early_cancel_message_key": _EARLY.format("1, NULL", "now() FROM generate_series(1, 2)"),
    "ck_deleted_queue_total_pruned_were_counted": "INSERT INTO deleted_queue_total VALUES (1, 1, 2, now())",
    "ck_action_total_not_negative": "UPDATE action SET max_concurrent_total = -1",
    "ck_action_rate_complete": "UPDATE action SET rate_starts = 1",
    "ck_action_priority_min_known": "UPDATE action SET priority_min = 6",
    "ck_action_route_complete": "UPDATE action SET route = '{1}'",
    "ck_execution_priority_known": "UPDATE execution SET priority = 0",
    "ck_gate_kind_known": _GATE.format("capacity", "'queue'", 1),
    "uq_gate_kind_name": _GATE.format("capacity", "'pool'", 1) + ", ('pool', 'n', 1)",
    "ck_gate_belongs_to_an_action": _GATE.format("capacity", "'action'", 1),
    "ck_gate_capacity_not_negative": _GATE.format("capacity", "'pool'", -1),
    "ck_gate_rate_complete": _GATE.format("rate_starts", "'pool'", 1),
    "uq_gate_flow_gate_id_flow_id": "INSERT INTO gate_flow (gate_id, flow_id) VALUES (1, 1), (1, 1)",
    "ck_gate_state_depth_not_negative": _GATE_STATE.format(0, -1, "NULL"),
    "ck_gate_state_held_not_negative": _GATE_STATE.format(-1, 0, "NULL"),
    "ck_gate_state_passed_within_capacity": _GATE_STATE.format(2, 0, 1),
    "uq_worker_pool_name": "INSERT INTO worker_pool (name) VALUES ('p'), ('p')",
    "ck_worker_pool_weights_known": """UPDATE worker_pool SET weights = '{"a": 0}'""",
    "ck_pool_state_capacity_not_negative": "UPDATE pool_state SET capacity = -1",
    "ck_pool_state_depth_not_negative": "UPDATE pool_state SET depth = -1",
    "ck_pool_state_held_not_negative": "UPDATE pool_state SET held = -1",
    "ck_pool_state_grant_within_capacity": "UPDATE pool_state SET held = 2, granted_capacity = 1",
    "fk_key_override_action_id": _OVERRIDE.format("max_concurrent", 0, 1),
    "ck_key_override_limit_not_negative": _OVERRIDE.format("max_concurrent", "id", -1),
    "ck_key_override_weight_known": _OVERRIDE.format("weight", "id", 17),
    "ck_submission_request_is_bounded": _SUBMISSION.format(
        "jsonb_build_object('a', repeat('x', 17 * 1000 * 1000))", 55
    ),
    "ck_submission_traceparent_is_bounded": _SUBMISSION.format("'{}'", 56),
    "ck_submission_outcome_admitted_or_rejected": "INSERT INTO submission_outcome (request_id, decided_at)"
    " VALUES (gen_random_uuid(), now())",
    "ck_worker_concurrency_positive": "UPDATE worker SET concurrency = 0",
    "ck_worker_offers_per_message_positive": "UPDATE worker SET offers_per_message = 0",
}


async def test_every_named_constraint_refuses_a_violation(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    await protocol.submit(count=2)
    for name, violation in VIOLATIONS.items():
        with pytest.raises(asyncpg.IntegrityConstraintViolationError) as raised:
            await protocol.connection.execute(violation)
        assert getattr(raised.value, "constraint_name", None) == name


def test_every_named_constraint_is_violated_above() -> None:
    tables = metadata.tables.values()
    named = {str(constraint.name) for table in tables for constraint in table.constraints}
    named |= {str(index.name) for table in tables for index in table.indexes if index.unique}
    assert {name for name in named if not name.startswith("pk_")} == set(VIOLATIONS)


def test_services_know_the_revisions_of_alembic() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    known = {script.revision for script in scripts.walk_revisions()}
    newest = scripts.get_current_head()
    for older in known - {newest}:
        assert f"is older ({older}) than this version needs ({newest})" in (
            SchemaVersion(older).trouble or ""
        )
    assert (SchemaVersion(newest).trouble, SchemaVersion(newest).notice) == (None, None)


_INSTALLED = "SELECT xmin::text || ctid::text FROM pg_namespace WHERE nspname = 'turnstile'"


async def test_six_processes_migrate_one_database_at_the_same_time(empty_database_url: str) -> None:
    program = (
        "import asyncio; from turnstile.migrations.run import migrate;"
        f" asyncio.run(migrate({empty_database_url!r}))"
    )
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", program, stderr=subprocess.PIPE
        )
        for _ in range(6)
    ]
    async with asyncio.timeout(60):
        errors = [(await process.communicate())[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, errors
    assert await is_current(empty_database_url)
    async with connected(empty_database_url) as protocol:
        assert await protocol.column("SELECT count(*) FROM alembic_version") == [1]


async def test_a_current_protocol_is_left_unchanged(protocol: Protocol, database_url: str) -> None:
    before = await protocol.column(_INSTALLED)
    await migrate(database_url)
    assert await protocol.column(_INSTALLED) == before


async def test_the_protocol_of_another_version_is_replaced(protocol: Protocol, database_url: str) -> None:
    await protocol.connection.execute(
        "CREATE FUNCTION turnstile.of_an_older_version() RETURNS int LANGUAGE sql AS 'SELECT 1';"
        "COMMENT ON SCHEMA turnstile IS 'an older hash'"
    )
    assert not await is_current(database_url)
    await migrate(database_url)
    assert await is_current(database_url)
    names = "SELECT proname FROM pg_proc WHERE pronamespace = 'turnstile'::regnamespace"
    assert "of_an_older_version" not in await protocol.column(names)


async def test_rows_survive_a_new_protocol(protocol: Protocol, database_url: str) -> None:
    await protocol.put(max_concurrent=1)
    ids = await protocol.submit(count=2)
    await protocol.connection.execute("COMMENT ON SCHEMA turnstile IS 'an older hash'")
    await migrate(database_url)
    async with connected(database_url) as fresh:
        await fresh.run(ids[0])
        assert (await fresh.settle((ids[0], 1))).granted == [ids[1]]


def test_the_loader_replaces_every_placeholder() -> None:
    text = installation_text()
    assert not re.search(r"(?<!:):[a-z_]+\b(?!:)", re.sub(r"--.*|'[^']*'", "", text))
    assert "ARRAY['delayed', 'queued', 'scheduled']::execution_status[]" in text
    assert protocol_hash() in text


async def _older(url: str) -> None:
    """Bring a database to the first revision."""
    engine = engine_of(url)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(lambda c: command.upgrade(alembic_config(c), "0001"))
    finally:
        await engine.dispose()


@asynccontextmanager
async def _backup(url: str) -> AsyncIterator[int]:
    """Lock every table as `pg_dump` does; yields the process id."""
    dump = await asyncpg.connect(url, server_settings={"application_name": "pg_dump"})
    try:
        async with dump.transaction():
            tables = await dump.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            for table in tables:
                await dump.execute(f"LOCK TABLE {table[0]} IN ACCESS SHARE MODE")
            yield dump.get_server_pid()
    finally:
        await dump.close()


async def test_a_migration_behind_a_backup_gives_way_and_names_the_blocking_session(
    empty_database_url: str,
) -> None:
    await _older(empty_database_url)
    other = await asyncpg.connect(empty_database_url)
    try:
        async with _backup(empty_database_url) as pid:
            migrating = asyncio.create_task(migrate(empty_database_url, lock_wait_seconds=0))
            waits = "SELECT relation::regclass::text FROM pg_locks WHERE NOT granted AND relation IS NOT NULL"
            async with asyncio.timeout(20):
                while not (table := await other.fetchval(waits)):
                    await asyncio.sleep(0.02)
            # Readers wait while the migration waits, and continue once it has given way.
            await asyncio.wait_for(other.fetchval(f"SELECT count(*) FROM {table}"), 20)
            with pytest.raises(MigrationBlocked, match=f"pid {pid} .pg_dump, user ") as blocked:
                await migrating
        assert [blocker.pid for blocker in blocked.value.blockers] == [pid]
        assert not await is_current(empty_database_url)
    finally:
        await other.close()


async def test_a_migration_continues_when_the_backup_has_ended(empty_database_url: str) -> None:
    await _older(empty_database_url)
    async with _backup(empty_database_url):
        migrating = asyncio.create_task(migrate(empty_database_url))
        await asyncio.sleep(0)
        async with connected(empty_database_url) as watcher, asyncio.timeout(20):
            while not await watcher.column("SELECT 1 FROM pg_locks WHERE NOT granted"):
                assert not migrating.done()
                await asyncio.sleep(0.02)
    await migrating
    assert await is_current(empty_database_url)


async def test_functions_with_the_owner_s_rights_have_a_fixed_search_path(protocol: Protocol) -> None:
    paths = await protocol.connection.fetch(
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'turnstile'::regnamespace AND prosecdef"
    )
    assert {row["proname"] for row in paths} == {
        *WORKER_FUNCTIONS,
        *SUBMITTER_FUNCTIONS,
        "enter_line",
        "log_operations",
        "prune_audit_log",
    }
    assert all("search_path=public, pg_temp" in row["proconfig"] for row in paths)
