"""The services that tests start: none outlives the tests, and a failure leaves their logs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import running
from tests.localservers.watching import processes_of, wait_until

_NOWHERE = ("postgresql://127.0.0.1:1/none", "amqp://127.0.0.1:1/none")


def test_services_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio
from tests.e2e.processes import running
async def own():
    settings = {{"HERE": {str(tmp_path)!r}}}
    async with running(*{_NOWHERE!r}, executors=0, workers=0, settings=settings) as system:
        await system.start_executor(wait=False)
        await system.launch_worker("tests.e2e.actions")
        print("started", flush=True)
        await asyncio.sleep(1000)
asyncio.run(own())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline()
        # The owner, the executor, the worker and its guardian.
        wait_until(lambda: len(processes_of(tmp_path)) == 4)
        owner.kill()
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


async def test_success_leaves_nothing() -> None:
    async with running(*_NOWHERE, executors=0, workers=0) as system:
        assert system.folder.is_dir()
    assert not system.folder.exists()
