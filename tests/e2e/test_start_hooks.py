"""`on_start`, `lifespan` and `on_stop`: once per process, before the first attempt and after the last."""

import re
from collections import Counter
from pathlib import Path

from tests.support.environment import StartEnvironment
from tests.support.traffic import until

# Not imported: its hooks would be those of this process, too.
MODULE = "tests.e2e.started_actions"
FOLDER = "STARTED_ACTIONS_FOLDER"


def noted(folder: Path) -> Counter[str]:
    """How often each hook was called, over all processes."""
    return Counter(line.split()[0] for line in (folder / "hooks").read_text().splitlines())


async def test_each_process_starts_once_and_ends_once(start_env: StartEnvironment, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("large")
    settings = {FOLDER: str(tmp_path), "TURNSTILE_CHILD_PROCESSES": "1", "TURNSTILE_CHILD_RUNS_MAX": "3"}
    async with start_env(actions=MODULE, settings=settings) as env:
        ids = await env.submit_many([{"action_ref": ref} for ref in ("started.async", "started.plain")] * 6)
        assert await env.ended(*ids) == ["completed"] * 12
        results = [(await env.get(execution_id))["result"] for execution_id in ids]
        assert {tuple(result[:2]) for result in results} == {("large", "open")}
        # One process for the async action; a child for each three runs of the plain one.
        assert [len({result[2] for result in results[kind::2]}) for kind in (0, 1)] == [1, 2]
        assert [{result[3] for result in results[kind::2]} for kind in (0, 1)] == [{"worker"}, {"child"}]
        assert noted(tmp_path)["start"] == 3
        assert await env.worker.stop() == 0
    assert noted(tmp_path) == {"start": 3, "worker": 1, "child": 2, "closed": 3, "stop": 3}


async def test_a_failing_start_is_shown_and_repeated_until_it_succeeds(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    async with start_env(workers=0, settings={FOLDER: str(tmp_path)}) as env:
        worker = await env.system.launch_worker(MODULE)
        await until(lambda: worker.log.exists() and "start_failed" in worker.log.read_text(), "the failure")
        await worker.until_unready(actions="a start hook failed: FileNotFoundError")
        (tmp_path / "model").write_text("found")
        await worker.ready()
        execution_id = await env.submit("started.async")
        assert await env.ended(execution_id) == ["completed"]
        assert worker.log.read_text().count("start_failed") == 2  # the failures, and their end

        # A worker of plain functions alone, whose hooks run in child processes; each runs one attempt.
        await worker.stop()
        (tmp_path / "model").unlink()
        reason = "a child process cannot start: FileNotFoundError: [Errno 2] No such file"
        worker = await env.system.launch_worker(f"{MODULE}:use_plain", TURNSTILE_CHILD_RUNS_MAX="1")
        await worker.until_unready(actions=reason)
        (tmp_path / "model").write_text("found")
        await worker.ready()
        assert await env.ended(await env.submit("started.plain")) == ["completed"]

        (tmp_path / "model").unlink()
        assert noted(tmp_path)["worker"] == 2  # also in a worker that runs no async action
        started_before = noted(tmp_path)["start"]
        ids = await env.submit_many([{"action_ref": "started.plain"}] * 3)
        await worker.until_unready(actions=reason)
        # Its attempts were returned, and it takes no others.
        await env.history.until("SELECT count(*) = 0 FROM ledger.current_execution WHERE status = 'running'")
        (tmp_path / "model").write_text("found")
        assert await env.ended(*ids) == ["completed"] * 3
        await worker.ready()
        # One failed start for each attempt that was granted before the first failure, and for each new try.
        assert noted(tmp_path)["start"] - started_before <= 3 + 3 + 5
        (*_, failure) = re.findall("start_failed where=child .*", worker.log.read_text())
        assert re.search("error_type=FileNotFoundError .*started_actions.py:[0-9]+ in load_model", failure)
