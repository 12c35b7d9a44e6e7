"""Migration 0012 on rows in every state: they stay, the old names stay readable, and executions continue."""

from pathlib import Path

from tests.integration.compatibility.conftest import UpgradeTo
from tests.support.protocol import connected
from turnstile.migrations.run import migrate

_REVISION_0011 = Path(__file__).with_name("revision_0011.psql")


async def test_rows_of_the_previous_schema_survive_and_its_names_stay_readable(
    upgrade_to: UpgradeTo,
) -> None:
    rows, reads = _REVISION_0011.read_text().split("-- reads:")
    url = await upgrade_to("0011")
    async with connected(url) as previous:
        await previous.connection.execute(rows)
        queries = [query for query in reads.partition("\n")[2].split(";\n") if query.strip()]
        before = [await previous.connection.fetch(query) for query in queries]
        assert all(before)

    await migrate(url)

    async with connected(url) as protocol:
        assert [await protocol.connection.fetch(query) for query in queries] == before
        assert await protocol.column("SELECT cancels_sent FROM slot ORDER BY execution_id") == [0, 0, 2, 0, 0]
        assert await protocol.due_completions() == [6, 7, 8]
        assert await protocol.due_cancels() == [(8, 1, "lost")]
        await protocol.cancels_published((8, 1, "lost"))
        assert await protocol.claim_verdicts(3, worker="live") == ["claimed"]
        for finished in await protocol.finish(3, 4, 5, worker="live"):
            assert finished.verdict.value == "applied"
        freed = await protocol.settle((3, 1), (4, 1), (5, 1), (6, 1), (7, 0), (8, 1))
        assert freed.count == 6
        assert freed.granted == [1]
        assert await protocol.unpublished() == []
        assert await protocol.held() == [1]
