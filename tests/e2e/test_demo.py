"""`executor demo` as a new user runs it: it passes, and nothing of it is left."""

import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.commands import Command, left_in
from tests.e2e.commands import started as started_command
from turnstile.common.cli import CommandFailed
from turnstile.stress.demo import demo

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "turnstile.executor.cli", "demo")

pytestmark = [pytest.mark.usefixtures("local_binaries"), pytest.mark.timeout(240)]


@asynccontextmanager
async def started(
    scratch_folder: Path, *arguments: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Command]:
    """Run the demo, with its temporary files in `scratch_folder`."""
    environment = {**os.environ, **(settings or {})}
    async with started_command(
        [*COMMAND, *arguments], cwd=ROOT, scratch_folder=scratch_folder, environment=environment
    ) as demo:
        yield demo


async def test_the_demo_passes_and_leaves_nothing(scratch_folder: Path) -> None:
    # Settings of the user are ignored.
    foreign = {"TURNSTILE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "TURNSTILE_HTTP_PORT": "1"}
    async with started(scratch_folder, settings=foreign) as demo:
        code = await demo.end()
    assert code == 0, demo.text
    for limit in (2, 3):
        # Executions, rate, limit, peak slots, peak running, out of order.
        assert re.search(rf"Limit {limit} +100 +\S+ +{limit} +{limit} +{limit} +0 ", demo.text), demo.text
    assert "PASS Every check, over 200 executions in 2 scenarios" in demo.text
    assert left_in(scratch_folder) == []


def test_without_the_source_it_says_where_to_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstile.stress.demo.ACTIONS_MODULE", "no_examples_here.actions")
    with pytest.raises(CommandFailed, match="in the folder of the source code") as failed:
        demo(stay=True)
    assert failed.value.exit_code == 2
