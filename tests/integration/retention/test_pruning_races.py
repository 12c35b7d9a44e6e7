"""Pruning beside others at work: it waits for nobody, holds up nobody, and a retry knows what it missed."""

from tests.integration.retention.pruning import HOUR, ended, left, pruner
from tests.support.protocol import Protocol, accepted, connected
from tests.support.stepping import blocked
from turnstile.common.domain.identifiers import ExecutionId


async def test_one_replica_prunes_at_a_time_and_nobody_waits(protocol: Protocol, database_url: str) -> None:
    await protocol.put("a")
    ids = await ended(protocol, 3, hours_ago=2)
    async with connected(database_url) as other:
        async with protocol.transaction():
            await protocol.connection.execute("SELECT * FROM turnstile.prune(0, 0, 3600, NULL, 0, 1)")
            assert await pruner(other, retention_age=HOUR).prune_executions() == 0
        assert await left(other) == ids[1:]
        assert await pruner(other, retention_age=HOUR).prune_executions() == 2


async def test_what_somebody_holds_is_passed_over(protocol: Protocol, database_url: str) -> None:
    await protocol.put("a")
    first, second = await ended(protocol, 2, hours_ago=2)
    async with connected(database_url) as other, other.transaction():
        await other.connection.execute("SELECT FROM execution WHERE id = $1 FOR KEY SHARE", first)
        assert await pruner(protocol, retention_age=HOUR).prune_executions() == 1
        assert await left(protocol) == [first]
    assert second not in await left(protocol)


async def test_pruning_waits_for_no_line_and_holds_up_none(protocol: Protocol, database_url: str) -> None:
    await protocol.put("a")
    await ended(protocol, 2, hours_ago=2)
    async with connected(database_url) as other, other.transaction():
        await other.connection.execute("SELECT FROM action_queue FOR NO KEY UPDATE")
        await other.connection.execute("SELECT FROM action FOR NO KEY UPDATE")
        await protocol.connection.execute("SET lock_timeout = '2s'")
        assert await pruner(protocol, retention_age=HOUR).prune_executions() == 2
    async with connected(database_url) as other, protocol.transaction():
        await ended(other, 2, hours_ago=2)
        await protocol.connection.execute("SELECT * FROM turnstile.prune(0, 0, 3600, NULL, 0, 100)")
        await other.connection.execute("SET lock_timeout = '2s'")
        assert len(await ended(other, 2)) == 2


async def test_what_is_pruned_while_its_retry_waits_for_the_line_was_retried(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a")
    (one,) = await ended(protocol, hours_ago=2)
    async with connected(database_url) as other:
        async with protocol.transaction():
            await protocol.put("a", max_concurrent=5)
            waiting = await blocked(other, protocol, other.queue_manager.retry([(ExecutionId(one), None)]))
            assert await pruner(protocol, retention_age=HOUR).prune_executions() == 1
        ((retried,), _) = await waiting
    assert (retried.previous_status, retried.action_ref) == ("completed", "a")
    assert retried.verdict is not None
    assert await left(protocol) == [accepted(retried.verdict).execution_id]


async def test_what_ends_while_its_retry_waits_for_the_line_had_not_ended(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a", max_concurrent=1)
    (done,) = await ended(protocol)
    runs, queued = await protocol.submit(count=2)
    async with connected(database_url) as other:
        async with protocol.transaction():
            await protocol.cancel(queued)
            asked = [(ExecutionId(i), None) for i in (done, queued)]
            waiting = await blocked(other, protocol, other.queue_manager.retry(asked))
        (retried, refused), _ = await waiting
    assert retried.previous_status == "completed"
    assert (refused.previous_status, refused.verdict) == ("queued", None)
    assert await protocol.held() == [runs]
