"""P9: a row that another database session holds delays its own outcome, and nothing else."""

from pathlib import Path

import pytest

from tests.support.environment import Environment
from tests.support.history import session_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
OTHERS = 8


async def test_a_locked_execution_delays_neither_its_slot_nor_others_and_its_end_is_kept(
    env: Environment, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    refs = [f"head.{n}" for n in range(OTHERS + 1)]
    for ref in refs:
        await env.put(ref, entrypoint="tests.e2e.actions:gate", max_concurrent=1)
    ids = await env.submit_many(
        [{"action_ref": ref, "parameters": {"file": str(gate)}} for ref in refs for _ in "ab"]
    )
    async with session_of(env.system.database_url) as connection, connection.transaction():
        await connection.fetch("SELECT FROM ledger.execution WHERE id = $1 FOR UPDATE", ids[0])
        gate.touch()
        # The one behind it has its slot, though the row cannot be written.
        await env.ended(*ids[1:])
        (completion,) = await env.completions(ids[0])
        assert completion.body["status"] == "completed"
        assert (await env.get(ids[0]))["status"] == "completed"
    assert await env.ended(ids[0]) == ["completed"]
    await env.history.until("SELECT count(*) = 0 FROM ledger.pending_end")
