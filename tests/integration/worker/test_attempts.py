"""Offers over a real broker become runs of real actions, and their ends come back."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.scripted_leader import ScriptedLeader, WorkerOnCore, worker_process
from tests.support.traffic import until
from turnstile.common.domain.states import Status

MODULE = "tests.support.core_actions"


@pytest.fixture
async def worker(amqp_url: str, leader: ScriptedLeader, tmp_path: Path) -> AsyncIterator[WorkerOnCore]:
    async with worker_process(amqp_url, tmp_path, MODULE, TURNSTILE_RESULT_BYTES_MAX="20000000") as worker:
        await leader.is_served()
        yield worker


def parameters(**given: object) -> bytes:
    return json.dumps(given).encode()


async def test_a_worker_registers_with_its_actions_and_what_is_shown_of_it(
    leader: ScriptedLeader, worker: WorkerOnCore
) -> None:
    hello = leader.hello
    assert hello.actions is not None
    assert "core.note" in hello.actions
    (definition,) = (each for each in hello.definitions if each["ref"] == "core.command")
    assert (definition["runner"], definition["entrypoint"]) == ("command", ["wc", "-w"])
    assert hello.about["pid"] == worker.process.pid
    (schemas,) = (each for each in hello.about["schemas"] if each["ref"] == "core.block")
    assert schemas["parameters"]["required"] == ["seconds"]
    assert hello.is_taking
    assert "serving worker_id=" in worker.text()


@pytest.mark.usefixtures("worker")
async def test_offers_start_in_order_and_at_most_at_once(leader: ScriptedLeader, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    for number in range(1, 9):
        given = parameters(path=str(path), name=str(number), seconds=0.02)
        await leader.offer("core.note", number, at_once=2, parameters=given)
    ends = await leader.ended(*range(1, 9))
    assert [end.result for end in ends] == [json.dumps(str(number)).encode() for number in range(1, 9)]
    lines = path.read_text().split()
    assert [line for line in lines if line[0] == "+"] == [f"+{number}" for number in range(1, 9)]
    running = 0
    for line in lines:
        running += 1 if line[0] == "+" else -1
        assert running <= 2


@pytest.mark.usefixtures("worker")
async def test_ends_are_repeated_until_they_are_committed(leader: ScriptedLeader) -> None:
    leader.is_committing = False
    await leader.offer("core.nothing", 1)
    await until(lambda: sum(each.body == leader.ends().get(1) for each in leader.reports) >= 2, "a copy")
    leader.is_committing = True
    await until(lambda: max(leader.committed.values(), default=0) >= 2, "the commit")
    count = len(leader.reports)
    await leader.offer("core.nothing", 2)
    await leader.ended(2)
    # Nothing but the new one, unless it was repeated before the answer arrived.
    assert {each.number for each in leader.reports[count:]} <= {2, 3}


@pytest.mark.usefixtures("worker")
async def test_failures_say_what_follows_from_them(leader: ScriptedLeader) -> None:
    for number, how in enumerate(("permanent", "temporary", "ValueError"), 1):
        await leader.offer("core.fails", number, parameters=parameters(how=how))
    permanent, temporary, other = await leader.ended(1, 2, 3)
    assert (permanent.status, permanent.error) == (Status.FAILED, ("PermanentError", "never"))
    assert not permanent.is_retryable
    assert (temporary.is_retryable, temporary.delay_seconds) == (True, 7.5)
    assert other.error == ("ValueError", "ValueError")
    assert "ValueError: ValueError" in (other.log or "")
    await leader.offer("core.fails", 4, parameters=b'{"what": 1}')
    (invalid,) = await leader.ended(4)
    assert invalid.error is not None
    assert invalid.error[0] == "InvalidParameters"
    assert not invalid.is_retryable


@pytest.mark.usefixtures("worker")
async def test_a_cancel_stops_a_run_and_is_its_outcome(leader: ScriptedLeader) -> None:
    await leader.offer("core.wait", 1)
    await until(lambda: leader.started() == [1], "its start")
    await leader.cancel(1)
    (end,) = await leader.ended(1)
    assert (end.status, end.error) == (Status.CANCELLED, ("Cancelled", "cancelled on request"))


@pytest.mark.usefixtures("worker")
async def test_a_cancel_before_the_offer_ends_it_unstarted(leader: ScriptedLeader) -> None:
    await leader.cancel(1)
    await leader.offer("core.wait", 1)
    (end,) = await leader.ended(1)
    assert (end.status, end.started_at) == (Status.CANCELLED, None)


@pytest.mark.usefixtures("worker")
async def test_a_timeout_says_how_the_run_ended(leader: ScriptedLeader) -> None:
    await leader.offer("core.wait", 1, timeout_seconds=0.3)
    await leader.offer("core.deaf", 2, timeout_seconds=0.3)
    ended, deaf = await leader.ended(1, 2)
    assert ended.status is deaf.status is Status.TIMEOUT
    assert ended.error is not None
    assert deaf.error is not None
    assert ended.error[1].startswith("it ran longer than its timeout of 300ms and was stopped after 0.")
    assert ended.error[1].endswith("; it ended within the grace period of 500ms")
    assert deaf.error[1].endswith("; it did not end within the grace period of 500ms and still runs")


@pytest.mark.usefixtures("worker")
async def test_a_recall_returns_what_has_not_started(leader: ScriptedLeader) -> None:
    await leader.offer("core.wait", 1, 2, 3, 4, at_once=1)
    await until(lambda: leader.started() == [1], "the start of the first")
    await leader.recall("core.wait", 3)
    await until(lambda: leader.returns().keys() == {2, 3}, "the returns")
    # Behind the barrier nothing starts, however late its offer arrives.
    await leader.offer("core.wait", 3, at_once=1)
    await leader.cancel(1)
    await leader.ended(1)
    await until(lambda: leader.started() == [1, 4], "the start of the last")
    assert not leader.returns()[2].had_started


@pytest.mark.usefixtures("worker")
async def test_logs_and_progress_are_followed_while_a_run_lasts(leader: ScriptedLeader) -> None:
    extra = {"metadata": {"tag": "t"}, "concurrency_key": "k"}
    await leader.offer("core.says", 1, parameters=b'{"seconds": 1.5}', timeout_seconds=60.0, extra=extra)
    await until(lambda: bool(leader.pieces) and bool(leader.progress), "what it says")
    assert 1 not in leader.ends()
    (end,) = await leader.ended(1)
    published = "".join(piece.text for piece in leader.pieces)
    assert leader.pieces[0].start == 0
    # The last live piece may also be in the end.
    assert end.log_start <= len(published)
    log = published[: end.log_start] + (end.log or "")
    assert [line.split()[-1] for line in log.splitlines()] == [
        "one",
        "two",
        "three",
    ]
    assert (leader.progress[0].done, leader.progress[0].message) == (1.0, "begun")
    await until(lambda: leader.progress[-1].done == 4.0, "the last progress")
    assert json.loads(end.result or b"") == {
        "attempt": 1, "metadata": {"tag": "t"}, "key": "k", "has_deadline": True,
    }  # fmt: skip


@pytest.mark.usefixtures("worker")
async def test_a_large_result_is_alone_in_its_message(leader: ScriptedLeader) -> None:
    size_bytes = 10_000_000
    before = leader.messages
    await leader.offer("core.large", 1, 2, parameters=parameters(size_bytes=size_bytes))
    ends = await leader.ended(1, 2)
    assert [len(end.result or b"") for end in ends] == [size_bytes + 2] * 2
    assert leader.messages >= before + 2
    await leader.offer("core.large", 3, parameters=parameters(size_bytes=20_000_001))
    (too_large,) = await leader.ended(3)
    assert too_large.error is not None
    assert too_large.error[0] == "ResultTooLarge"


@pytest.mark.usefixtures("worker")
async def test_a_child_that_is_killed_fails_its_attempt_and_the_next_one_runs(
    leader: ScriptedLeader,
) -> None:
    await leader.offer("core.child", 1, parameters=parameters(how="dies"))
    await leader.offer("core.child", 2)
    await leader.offer("core.command", 3, parameters=parameters(words="a b c"))
    died, ended, counted = await leader.ended(1, 2, 3)
    assert died.error is not None
    assert died.error[0] == "ProcessDied"
    assert died.is_retryable
    assert json.loads(ended.result or b"") == "ok in another process"
    assert json.loads(counted.result or b"") == 4


@pytest.mark.usefixtures("worker")
async def test_a_cancelled_child_dies_with_all_its_processes(leader: ScriptedLeader, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    await leader.offer("core.child", 1, parameters=parameters(how="hangs", path=str(path)))
    await until(lambda: path.exists() and len(path.read_text().split()) == 2, "the processes")
    await leader.cancel(1)
    (end,) = await leader.ended(1)
    assert end.status is Status.CANCELLED
    for pid in path.read_text().split():
        await until(lambda pid=pid: not _runs(pid), "its death")  # type: ignore[misc]


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.usefixtures("worker")
async def test_many_offers_come_back_in_few_messages(leader: ScriptedLeader) -> None:
    ids = range(1, 2001)
    before = leader.messages
    for start in range(1, 2001, 250):
        await leader.offer("core.nothing", *range(start, start + 250), at_once=4)
    await leader.ended(*ids)
    assert leader.messages - before < 1000
