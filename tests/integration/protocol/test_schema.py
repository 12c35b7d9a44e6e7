"""The schema says what the code says: the same states, the same tables, every invariant by name."""

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection

from tests.support.protocol import Protocol, connected
from turnstile.common.domain.states import Status
from turnstile.common.tables import metadata
from turnstile.migrations.run import engine_of


async def test_the_states_in_the_database_are_those_of_the_code_in_the_same_order(protocol: Protocol) -> None:
    labels = await protocol.column("SELECT unnest(enum_range(NULL::execution_status))::text")
    assert labels == [status.value for status in Status]


async def test_the_migrations_lead_to_the_tables(database_url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    engine = engine_of(database_url)
    try:
        async with engine.connect() as connection:
            assert await connection.run_sync(differences) == []
    finally:
        await engine.dispose()


async def test_the_migrations_lead_to_the_storage_settings_checks_and_partial_indexes(
    database_url: str, empty_database_url: str
) -> None:
    # What Alembic does not compare: the catalogue after the migrations against that of the tables themselves.
    engine = engine_of(empty_database_url)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await engine.dispose()
    async with connected(database_url) as migrated, connected(empty_database_url) as created:
        for query in (
            "SELECT relname || ' ' || array_to_string(array(SELECT unnest(reloptions) ORDER BY 1), ' ')"
            " FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            " AND relname <> 'alembic_version' AND reloptions IS NOT NULL ORDER BY 1",
            "SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)"
            " FROM pg_constraint WHERE connamespace = 'public'::regnamespace"
            " AND conrelid::regclass::text <> 'alembic_version' AND contype <> 'n' ORDER BY 1",
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
            " ORDER BY 1",
            "SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' '"
            " || coalesce(column_default, '-') FROM information_schema.columns"
            " WHERE table_schema = 'public' AND table_name <> 'alembic_version' ORDER BY 1",
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
VIOLATIONS = {
    "ck_action_limit_not_negative": "UPDATE action SET max_concurrent = -1",
    "ck_action_max_queued_not_negative": "UPDATE action SET max_queued = -1",
    "ck_action_durations_not_negative": "UPDATE action SET ttl_seconds = -1",
    "ck_action_runner_known": "UPDATE action SET runner = 'cobol'",
    "ck_action_on_worker_lost_known": "UPDATE action SET on_worker_lost = 'pray'",
    "ck_action_when_full_known": "UPDATE action SET when_full = 'burst'",
    "ck_action_counts_not_negative": "UPDATE action SET retry_max_attempts = 0",
    "uq_action_ref": "INSERT INTO action (ref, retry_delay_seconds) SELECT ref, 1 FROM action",
    "ck_action_change_change_known": "INSERT INTO action_change (action_ref, change) VALUES ('a', 'burst')",
    "ck_action_queue_depth_not_negative": "UPDATE action_queue SET depth = -1",
    "ck_action_queue_totals_ordered": "UPDATE action_queue SET total_completed = total_enqueued + 1",
    "ck_action_queue_limit_not_negative": "UPDATE action_queue SET max_concurrent = -1",
    "uq_action_queue_action_id_concurrency_key": "INSERT INTO action_queue (action_id) SELECT id FROM action",
    "fk_action_queue_action_id": "UPDATE action_queue SET action_id = 0",
    "ck_execution_attempt_not_negative": "UPDATE execution SET status = 'queued', attempt = -1",
    "ck_execution_completed_at_iff_terminal": "UPDATE execution SET completed_at = now()",
    "ck_execution_running_has_worker": "UPDATE execution SET status = 'running'",
    "ck_execution_granted_has_attempt": "UPDATE execution SET attempt = 0",
    "ck_execution_result_only_when_completed": "UPDATE execution SET result = '1'",
    "ck_execution_parameters_are_an_object": "UPDATE execution SET parameters = '[]'",
    "ck_execution_metadata_is_an_object": "UPDATE execution SET metadata = '1'",
    "uq_execution_idempotency_key": "UPDATE execution SET idempotency_key = 'k'",
    "uq_execution_delivery_key": "UPDATE execution SET delivery_key = md5('same')::uuid",
    "ck_attempt_attempt_positive": "INSERT INTO attempt (execution_id, attempt, worker_id, outcome,"
    " granted_at, started_at, ended_at) VALUES (1, 0, 'w', 'failed', now(), now(), now())",
    "ck_slot_number_positive": "UPDATE slot SET slot_number = 0",
    "ck_slot_attempt_positive": "UPDATE slot SET attempt = 0",
    "ck_slot_claimed_by_a_worker": "UPDATE slot SET worker_id = 'w'",
    "uq_slot_number": "UPDATE slot SET slot_number = 1",
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
    "ck_worker_concurrency_positive": "UPDATE worker SET concurrency = 0",
}


async def test_every_invariant_that_a_row_can_state_bites(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    await protocol.submit(count=2)
    for name, violation in VIOLATIONS.items():
        with pytest.raises(asyncpg.IntegrityConstraintViolationError) as raised:
            await protocol.connection.execute(violation)
        assert getattr(raised.value, "constraint_name", None) == name


def test_every_named_invariant_is_tried() -> None:
    tables = metadata.tables.values()
    named = {str(constraint.name) for table in tables for constraint in table.constraints}
    named |= {str(index.name) for table in tables for index in table.indexes if index.unique}
    assert {name for name in named if not name.startswith("pk_")} == set(VIOLATIONS)
