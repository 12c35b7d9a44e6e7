"""Whatever code of an action does to its process, its execution ends and the next one is whole.

Each test needs a process, because the code would do the same to that of the tests.
"""

import json
import signal
from pathlib import Path

from tests.support.core_harmful_actions import DEEDS
from tests.support.traffic import until
from tests.support.worker_process import worker_process
from turnstile.common.domain.states import Status
from turnstile.common.exit_codes import ExitCode
from turnstile.testing.worker_check.leader import ScriptedLeader

MODULE = "tests.support.core_harmful_actions"
# What is printed comes with the end, whole.
ONE_CHILD = {"TURNSTILE_CHILD_PROCESSES": "1", "TURNSTILE_LOG_FLUSH_INTERVAL": "60s"}


async def _next(leader: ScriptedLeader, action: str, number: int) -> None:
    """Run the action, which has its own result and its own log."""
    await leader.offer(action, number, parameters=json.dumps({"number": number}).encode())
    (end,) = await leader.ended(number)
    assert (end.status, end.result) == ("completed", str(number).encode()), end
    assert end.log == f"näxt {number}\n"


async def test_whatever_a_function_does_to_its_process_the_next_run_is_whole(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE, **ONE_CHILD, PYTHONIOENCODING="ascii") as worker:
        await leader.is_served()
        for number, how in enumerate(DEEDS, start=1):
            await leader.offer("harm.plain", 100 * number, parameters=json.dumps({"how": how}).encode())
            await leader.ended(100 * number)
            # Two: the answer of a forked copy would be taken for that of the first.
            await _next(leader, "harm.next", 100 * number + 1)
            await _next(leader, "harm.next", 100 * number + 2)
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert leader.has_left


async def test_a_function_sees_its_stop_though_the_one_before_ignored_signals(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE, **ONE_CHILD, TURNSTILE_STOP_GRACE="20s") as worker:
        await leader.is_served()
        await leader.offer("harm.plain", 1, parameters=b'{"how": "ignores SIGTERM"}')
        await leader.ended(1)
        await leader.offer("harm.next.stopped", 2)
        await until(lambda: "it runs" in worker.text(), "the run")
        await leader.cancel(2)
        (end,) = await leader.ended(2, seconds=10)
        assert end.status is Status.CANCELLED
        assert end.log is not None
        assert "it was stopped" in end.log


async def test_a_process_that_an_async_action_forks_is_no_second_worker(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE, **ONE_CHILD) as worker:
        await leader.is_served()
        await leader.offer("harm.async", 1, parameters=b'{"how": "forks"}')
        await leader.offer("harm.thread", 2)
        ends = await leader.ended(1, 2)
        assert [each.result for each in ends] == [str(worker.process.pid).encode()] * 2
        for number in range(3, 9):
            await _next(leader, "harm.next.async", number)
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert leader.has_left


async def test_a_worker_drains_though_an_action_has_replaced_the_handler_of_the_signal(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE) as worker:
        await leader.is_served()
        await leader.offer("harm.async", 1, parameters=b'{"how": "ignores SIGTERM"}')
        await leader.ended(1)
        await until(lambda: "signal_handler_replaced signal=SIGTERM" in worker.text(), "the warning")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert leader.has_left


async def test_a_worker_whose_loop_an_action_blocks_for_good_ends_so_that_its_work_is_reclaimed(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE, TURNSTILE_LOOP_BLOCKED_MAX="2s") as worker:
        await leader.is_served()
        await leader.offer("harm.blocks", 1)
        assert await worker.ended() == ExitCode.NOT_STOPPED
        assert "event_loop_hung location=core_harmful_actions.py:" in worker.text()
        assert "execution_id=1" in worker.text()
