"""The launcher of services in tests: no service outlives the tests, and a failure keeps their logs."""

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
    # The owner, the executor, the worker and its supervisor.
    kill_owner(code, when=lambda: len(processes_of(tmp_path)) == 4)
    wait_until(lambda: processes_of(tmp_path) == {})


async def test_a_failure_keeps_the_logs_and_names_their_folder() -> None:
    with pytest.raises(pytest.fail.Exception, match="not as expected") as failure:
        async with running(*_NOWHERE, executors=0, workers=0) as system:
            pytest.fail("not as expected")
    assert system.folder.is_dir()
    shutil.rmtree(system.folder)
    assert any(str(system.folder) in note for note in failure.value.__notes__)


@pytest.mark.parametrize("failures", [[], ["a test on this system"]], ids=["no failure", "one failure"])
async def test_logs_are_deleted_unless_a_test_on_the_system_failed(
    monkeypatch: pytest.MonkeyPatch, failures: list[str]
) -> None:
    monkeypatch.setattr("tests.support.processes.failed_tests", failed := ["an earlier test"])
    async with running(*_NOWHERE, executors=0, workers=0) as system:
        failed += failures
    assert system.folder.exists() is bool(failures)
    shutil.rmtree(system.folder, ignore_errors=True)
