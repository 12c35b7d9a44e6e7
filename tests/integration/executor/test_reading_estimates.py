"""`estimated_start` is shown once a run has ended, and while the execution can start."""

from datetime import datetime
from typing import Any

import pytest

from tests.support.served import Served


@pytest.fixture
async def waiting(api: Served) -> int:
    """What waits behind a run, after another one has ended."""
    await api.define("a.b", max_concurrent=1, runs=False)
    api.join()
    first, running, waiting = await api.submit_many("a.b", 3)
    await api.run(first)
    await api.start(running)
    return waiting


async def estimate(api: Served, execution_id: int) -> Any:
    return (await api.get(f"/executions/{execution_id}"))["estimated_start"]


async def test_what_waits_behind_a_run_has_an_interval(api: Served, waiting: int) -> None:
    shown = await estimate(api, waiting)
    assert list(shown) == ["earliest", "latest"]
    assert all(text.endswith("Z") for text in shown.values())
    assert datetime.fromisoformat(shown["earliest"]) < datetime.fromisoformat(shown["latest"])


async def test_there_is_no_estimate_before_a_run_has_ended(api: Served) -> None:
    await api.define("a.b", max_concurrent=1)
    api.join()
    running, waiting = await api.submit_many("a.b", 2)
    await api.start(running)
    assert await estimate(api, running) is None
    assert await estimate(api, waiting) is None


async def test_without_the_broker_nothing_is_estimated(api: Served, waiting: int) -> None:
    api.parts["broker"] = "connection refused"
    assert await estimate(api, waiting) is None
    assert (await api.get(f"/executions/{waiting}"))["waiting_on"]["reason"] == "limit"
    api.parts["broker"] = None
    assert await estimate(api, waiting) is not None


async def test_what_is_paused_has_no_estimate(api: Served, waiting: int) -> None:
    await api.http.post("/api/v1/actions/a.b/pause")
    assert await estimate(api, waiting) is None
