"""The services that tests start: none outlives the tests, and a failure leaves their logs."""

import shutil
from pathlib import Path

import pytest

from tests.integration.localservers.watching import kill_owner, processes_of, wait_until
from tests.support.processes import running

_NOWHERE = ("postgresql://127.0.0.1:1/none", "amqp://127.0.0.1:1/none")


def test_services_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, os
from tests.support.processes import running
os.environ["TMPDIR"] = {str(tmp_path)!r}
async def own():
    async with running(*{_NOWHERE!r}, executors=0, workers=0) as system:
        await system.start_executor(wait=False)
        await system.launch_worker("tests.e2e.actions")
        print("started", flush=True)
        await asyncio.sleep(1000)
asyncio.run(own())
"""
    # The owner, the executor, the worker and its guardian.
    kill_owner(code, when=lambda: len(processes_of(tmp_path)) == 4)
    wait_until(lambda: processes_of(tmp_path) == {})


async def test_a_failure_leaves_the_logs_and_says_where() -> None:
    with pytest.raises(pytest.fail.Exception, match="not as expected") as failure:
        async with running(*_NOWHERE, executors=0, workers=0) as system:
            pytest.fail("not as expected")
    try:
        assert system.folder.is_dir()
        assert any(str(system.folder) in note for note in failure.value.__notes__)
    finally:
        shutil.rmtree(system.folder)


async def test_a_failure_of_one_test_of_several_on_one_system_leaves_the_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.support.processes.failed_tests", failed := ["an earlier one"])
    async with running(*_NOWHERE, executors=0, workers=0) as system:
        failed.append("one of them")
    assert system.folder.is_dir()
    shutil.rmtree(system.folder)


async def test_success_leaves_nothing() -> None:
    async with running(*_NOWHERE, executors=0, workers=0) as system:
        assert system.folder.is_dir()
    assert not system.folder.exists()
