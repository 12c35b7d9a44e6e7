"""Migration 0013 on executions in every place: the new functions bring each to its outcome."""

from pathlib import Path

from tests.integration.compatibility.conftest import UpgradeTo
from tests.support.history import faults_in
from tests.support.protocol import Protocol, connected
from turnstile.migrations.run import migrate

_REVISION_0012 = Path(__file__).with_name("revision_0012.psql")
_CURRENT = "SELECT status::text FROM turnstile.current_execution ORDER BY id"
_ATTEMPTS = """
SELECT e.id, array_agg(t.attempt || ' ' || t.outcome ORDER BY t.attempt) FILTER (WHERE t.attempt IS NOT NULL)
FROM execution e LEFT JOIN turnstile.ended_attempt t ON t.execution_id = e.id GROUP BY e.id ORDER BY e.id
"""


async def run(protocol: Protocol, attempts: dict[int, int]) -> None:
    for execution_id, attempt in attempts.items():
        await protocol.run(execution_id, attempt=attempt, worker="live")


async def test_every_execution_of_the_previous_schema_comes_to_its_end(upgrade_to: UpgradeTo) -> None:
    url = await upgrade_to("0012")
    async with connected(url) as previous:
        await previous.connection.execute(_REVISION_0012.read_text())
        before = await previous.column("SELECT status::text FROM execution ORDER BY id")
        attempts = await previous.column("SELECT attempt FROM execution ORDER BY id")

    await migrate(url)

    async with connected(url) as protocol:
        assert await protocol.column(_CURRENT) == before
        assert (
            await protocol.column("SELECT attempt FROM turnstile.current_execution ORDER BY id") == attempts
        )
        # The delays of 2020 were due long ago; nothing else is wrong.
        assert [fault.partition(":")[0] for fault in await faults_in(url)] == ["waking"]

        # What was granted is claimed with the attempt of its offer, and what runs is reported by its worker.
        await run(protocol, {3: 1, 4: 2})
        for execution_id, attempt in ((5, 1), (6, 2)):
            verdict = await protocol.finish_verdict(execution_id, attempt=attempt, worker="live")
            assert verdict == "applied"
        freed = await protocol.settle((2, 2), (3, 1), (4, 2), (5, 1), (6, 2), (8, 1), (12, 0))
        assert (freed.count, freed.granted) == (7, [10, 11])

        woken, grants = await protocol.wake_due()
        assert sorted(move.execution_id for move in woken) == [7, 8, 9]
        granted = {grant.execution_id: grant.attempt for grant in grants.granted}
        assert granted == {7: 2, 8: 2, 9: 1}
        assert await faults_in(url) == []
        rest = {10: 2, 11: 1, **{int(i): int(attempt) for i, attempt in granted.items()}}
        await run(protocol, rest)
        freed = await protocol.settle(*rest.items())
        assert (freed.count, freed.granted) == (5, [])

        assert await protocol.column(_CURRENT) == ["completed"] * 11 + ["cancelled"]
        ended = {row[0]: row[1] for row in await protocol.connection.fetch(_ATTEMPTS)}
        assert ended == {
            1: ["1 completed"],
            2: ["1 retried", "2 completed"],
            3: ["1 completed"],
            4: ["1 reclaimed", "2 completed"],
            5: ["1 completed"],
            6: ["1 retried", "2 completed"],
            7: ["1 retried", "2 completed"],
            8: ["1 retried", "2 completed"],
            9: ["1 completed"],
            10: ["1 reclaimed", "2 completed"],
            11: ["1 completed"],
            12: None,
        }
        queue = await protocol.queue()
        assert (queue["depth"], queue["held"]) == (0, 0)
        assert (queue["total_enqueued"], queue["total_completed"]) == (12, 12)
        assert await faults_in(url) == []
