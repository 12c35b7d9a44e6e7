"""What a turn depends on is set by its session, whatever the role, the database or the server sets."""

import pytest

from tests.support.ledger import Led, ended, ledger_on, session_on

_HOSTILE = {
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "synchronous_commit": "off",
    "search_path": "nowhere",
    "statement_timeout": "200ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "200ms",
    "TimeZone": "Pacific/Auckland",
    "DateStyle": "German",
    "enable_indexscan": "on",
    "jit": "on",
    "jit_above_cost": "0",
    "plan_cache_mode": "force_custom_plan",
    "bytea_output": "escape",
    "extra_float_digits": "0",
}


async def _set(url: str, settings: dict[str, str]) -> None:
    async with session_on(url) as session:
        database = await session.fetchval("SELECT current_database()")
        for name, value in settings.items():
            await session.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")


async def test_hostile_defaults_change_nothing(database_url: str) -> None:
    await _set(database_url, _HOSTILE)
    async with ledger_on(database_url) as ledger:
        led = await Led.by(ledger)
        turn = await led.admit(1, 2)
        await led.write(ended=[ended(1)])
        loaded = await led.load()
        assert [(row.id, row.queued_at) for row in loaded.waiting] == [(2, turn.admitted[1].created_at)]
        async with ledger._writer.use() as session:
            found = {
                name: await session.fetchval(f"SHOW {name}")
                for name in ("transaction_isolation", "synchronous_commit", "lock_timeout", "plan_cache_mode")
            }
    assert found == {
        "transaction_isolation": "read committed",
        "synchronous_commit": "on",
        "lock_timeout": "100ms",
        "plan_cache_mode": "force_generic_plan",
    }


@pytest.mark.parametrize(
    ("given", "kept"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
async def test_a_commit_is_at_least_durable_here(database_url: str, given: str, kept: str) -> None:
    await _set(database_url, {"synchronous_commit": given})
    async with ledger_on(database_url) as ledger, ledger._writer.use() as session:
        assert await session.fetchval("SHOW synchronous_commit") == kept
