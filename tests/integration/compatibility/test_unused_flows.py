"""Migration 0031: flows of deleted queues go with their turns, all others stay."""

from tests.integration.compatibility.conftest import UpgradeTo
from tests.support.protocol import connected
from turnstile.migrations.run import migrate

_FLOWS = """
INSERT INTO action (ref, runner, pool) VALUES ('a', 'python', 'default');
INSERT INTO action_queue (id, action_id, concurrency_key) SELECT 101, id, 'in use' FROM action;
INSERT INTO gate (id, kind, name, action_id, fair) SELECT 1, 'action', id::text, id, true FROM action;
INSERT INTO gate (id, kind, name, fair) VALUES (2, 'resource', 'cad', true);
INSERT INTO gate_state (gate_id, version, held, depth, head_id, virtual_times, starts_taken, updated_at)
SELECT id, 1, 0, 0, 0, '{0,0,0,0,0}', 0, now() FROM gate;
INSERT INTO gate_flow (id, gate_id, flow_id) VALUES (11, 1, 101), (12, 1, 102), (13, 1, 103), (21, 2, 104);
INSERT INTO flow_turn (gate_id, line_id, priority, start_tag, place)
SELECT gate_id, id, 3, 720720, NULL FROM gate_flow;
INSERT INTO waiting (line_id, place) VALUES (13, 1);
"""


async def test_only_flows_of_deleted_queues_where_nothing_waits_are_deleted(upgrade_to: UpgradeTo) -> None:
    url = await upgrade_to("0030")
    async with connected(url) as previous:
        await previous.connection.execute(_FLOWS)

    await migrate(url)

    async with connected(url) as protocol:
        assert await protocol.column("SELECT id FROM gate_flow ORDER BY id") == [11, 13, 21]
        assert await protocol.column("SELECT line_id FROM flow_turn ORDER BY line_id") == [11, 13, 21]
