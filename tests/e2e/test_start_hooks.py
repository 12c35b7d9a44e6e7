"""Start and stop hooks run once per process, before and after its attempts; a start that fails is repeated.

Whole services: hooks are counted by process.
"""

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


async def test_each_process_starts_once_it_can_and_ends_once(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    settings = {FOLDER: str(tmp_path), "TURNSTILE_CHILD_PROCESSES": "1", "TURNSTILE_CHILD_RUNS_MAX": "3"}
    async with start_env(workers=0, settings=settings) as env:
        worker = await env.system.launch_worker(MODULE)

        async def is_not_ready() -> bool:
            workers = (await env.http.get("/workers")).json()["items"]
            return any("FileNotFoundError" in (each["not_ready"] or "") for each in workers)

        await until(is_not_ready, "the worker has joined, and says what it lacks")
        (tmp_path / "model").write_text("large")
        await worker.ready()
        ids = await env.submit_many([{"action_ref": ref} for ref in ("started.async", "started.plain")] * 6)
        assert await env.ended(*ids) == ["completed"] * 12
        results = [(await env.get(execution_id))["result"] for execution_id in ids]
        assert {tuple(result[:2]) for result in results} == {("large", "open")}
        # One process for the async action; a child for each three runs of the plain one.
        assert [len({result[2] for result in results[kind::2]}) for kind in (0, 1)] == [1, 2]
        assert [{result[3] for result in results[kind::2]} for kind in (0, 1)] == [{"worker"}, {"child"}]
        assert noted(tmp_path)["start"] == 3
        assert await worker.stop() == 0
    assert noted(tmp_path) == {"start": 3, "worker": 1, "child": 2, "closed": 3, "stop": 3}
