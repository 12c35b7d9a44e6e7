"""Migration 0019: changes of actions and resources are rows of the audit log, and readable as before."""

from tests.integration.compatibility.conftest import UpgradeTo
from tests.support.protocol import connected
from turnstile.migrations.run import migrate

_CHANGES = """
INSERT INTO action_change (action_ref, changed_at, changed_by, change, old, new) VALUES
    ('a', '2026-01-01Z', 'worker', 'created', '{}', '{"max_concurrent": 1}'),
    ('a', '2026-01-03Z', 'alice', 'limit_changed', '{"max_concurrent": 1}', '{"max_concurrent": 2}');
INSERT INTO resource_change (resource, changed_at, changed_by, change, old, new) VALUES
    ('cad', '2026-01-02Z', NULL, 'paused', '{"paused": false}', '{"paused": true}');
"""
_READS = (
    "SELECT action_ref, changed_at, changed_by, change, old, new FROM action_change ORDER BY id",
    "SELECT resource, changed_at, changed_by, change, old, new FROM resource_change ORDER BY id",
)


async def test_changes_of_the_previous_schema_are_in_the_log_and_its_tables_readable(
    upgrade_to: UpgradeTo,
) -> None:
    url = await upgrade_to("0018")
    async with connected(url) as previous:
        await previous.connection.execute(_CHANGES)
        before = [await previous.connection.fetch(query) for query in _READS]
        assert all(before)

    await migrate(url)

    async with connected(url) as protocol:
        assert [await protocol.connection.fetch(query) for query in _READS] == before
        rows = await protocol.connection.fetch(
            "SELECT actor, channel, verb, subject_kind, subject, action_ref FROM audit_log"
            " WHERE verb <> 'migrated' ORDER BY id"
        )
        assert [tuple(row) for row in rows] == [
            ("worker", "worker", "created", "action", "a", "a"),
            (None, None, "paused", "resource", "cad", None),
            ("alice", None, "limit_changed", "action", "a", "a"),
        ]
