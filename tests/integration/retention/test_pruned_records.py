"""Workers, changes of actions and webhooks: what nobody asks for any more goes, however many they are."""

import pytest

from tests.integration.retention.pruning import pruner
from tests.support.protocol import Protocol


async def test_workers_that_are_gone_for_long_go_and_others_stay(protocol: Protocol) -> None:
    for worker in ("left", "lost", "holds", "young", "told"):
        await protocol.register(worker)
    await protocol.put("a")
    (one,) = await protocol.submit()
    await protocol.claim(one, worker="holds")
    await protocol.connection.execute(
        "UPDATE worker SET started_at = '2020-01-01Z', renewed_at = '2020-01-01Z';"
        "UPDATE worker SET stopped_at = '2020-01-01Z' WHERE id = 'left';"
        "UPDATE worker SET lost_at = '2020-01-01Z' WHERE id IN ('lost', 'holds', 'told');"
        "UPDATE worker SET stopped_at = now() WHERE id = 'young';"
        "INSERT INTO untold_stop VALUES (1, 1, 'told', now())"
    )
    assert await pruner(protocol).prune_workers() == 2
    assert await protocol.column("SELECT id FROM worker ORDER BY id") == [
        "holds",
        "told",
        "worker-1",
        "young",
    ]


async def test_old_changes_of_actions_go(protocol: Protocol) -> None:
    for limit in (1, 2, 3):
        await protocol.put("a", max_concurrent=limit)
    await protocol.connection.execute(
        "UPDATE action_change SET changed_at = '2020-01-01Z'"
        " WHERE id IN (SELECT id FROM action_change ORDER BY id LIMIT 2)"
    )
    assert await pruner(protocol).prune_changes() == 2
    assert await protocol.column("SELECT new ->> 'max_concurrent' FROM action_change") == ["3"]


async def test_webhooks_are_given_up_and_forgotten_however_many_they_are(
    protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.retention.pruner._ROWS_MAX", 2)
    await protocol.connection.execute(
        "INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at, state, settled_at)"
        " SELECT n, 'u', 'o', now() - interval '9 d', now() - interval '9 d',"
        " CASE WHEN n % 2 = 0 THEN 'pending' ELSE 'delivered' END,"
        " CASE WHEN n % 2 = 1 THEN now() - interval '8 d' END FROM generate_series(1, 10) n"
    )
    assert await pruner(protocol).clean_webhooks() == 10
    assert await protocol.column("SELECT DISTINCT state FROM webhook_delivery") == ["failed"]
    assert await protocol.column("SELECT count(*) FROM webhook_delivery") == [5]


async def test_changes_are_forgotten_however_many_they_are(
    protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.retention.pruner._ROWS_MAX", 2)
    for limit in range(1, 6):
        await protocol.put("a", max_concurrent=limit)
    await protocol.connection.execute("UPDATE action_change SET changed_at = changed_at - interval '2 y'")
    assert await pruner(protocol).prune_changes() == 5
