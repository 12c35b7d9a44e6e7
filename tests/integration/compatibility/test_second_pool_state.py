"""Migration 0032: of several states of a pool the newest one stays."""

from alembic import command

from tests.support.protocol import connected
from turnstile.migrations.run import alembic_config, engine_of, migrate

_POOLS = """
INSERT INTO worker_pool (id, name) VALUES (1, 'default'), (2, 'gpu');
INSERT INTO pool_state (pool_id, version, places, lead, leaving, held, depth, virtual_times, total_released,
                        updated_at)
SELECT * FROM (VALUES (1, 1), (1, 7), (2, 3)) v(pool_id, version)
CROSS JOIN (SELECT 0, 0, 0, 0, 0, '{0,0,0,0,0}'::bigint[], 0, now()) n;
"""


async def test_only_the_newest_state_of_each_pool_stays(empty_database_url: str) -> None:
    engine = engine_of(empty_database_url)
    async with engine.begin() as connection:
        await connection.run_sync(lambda c: command.upgrade(alembic_config(c), "0031"))
    await engine.dispose()
    async with connected(empty_database_url) as previous:
        await previous.connection.execute(_POOLS)

    await migrate(empty_database_url)

    async with connected(empty_database_url) as protocol:
        rows = await protocol.connection.fetch("SELECT pool_id, version FROM pool_state ORDER BY pool_id")
        assert [tuple(row) for row in rows] == [(1, 7), (2, 3)]
