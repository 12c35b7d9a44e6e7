"""Offers over a real broker become runs of real actions, and their ends come back."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.scripted_leader import ScriptedLeader, WorkerOnCore, worker_process
from tests.support.traffic import until

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
