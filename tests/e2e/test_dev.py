"""`turnstile dev` as an author of actions runs it: changes are followed, and nothing of it is left.

The command starts servers and a worker, and watches files.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.commands import Command, left_in, started
from tests.integration.localservers.watching import processes_of
from turnstile.client import AsyncClient

COMMAND = (sys.executable, "-m", "turnstile", "dev", "--actions", "reports")
BARE = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
"""Nothing else of the environment: no PATH, no HOME, no TERM."""
_CODE = """
from turnstile import action

@action("reports.render", {declared})
async def render(number: int) -> str:
    return f"{answer} {{number}}"
"""

pytestmark = [pytest.mark.usefixtures("local_binaries"), pytest.mark.timeout(240)]


@pytest.fixture
def project(scratch_folder: Path) -> Path:
    """A folder with one action and nothing else."""
    folder = scratch_folder / "project"
    folder.mkdir()
    write(folder, answer="first")
    return folder


def write(project: Path, *, answer: str, declared: str = "max_concurrent=2") -> None:
    (project / "reports.py").write_text(code(answer, declared))


def code(answer: str, declared: str = "max_concurrent=2") -> str:
    return _CODE.format(answer=answer, declared=declared)


@asynccontextmanager
async def developing(
    project: Path, *arguments: str, environment: dict[str, str] | None = None
) -> AsyncIterator[Command]:
    """Run it until the worker serves; at the end nothing of it may run."""
    scratch = project.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    given = dict(os.environ) if environment is None else environment
    async with started(
        [*COMMAND, *arguments], cwd=project, scratch_folder=scratch, environment=given
    ) as command:
        yield command
        command.process.send_signal(signal.SIGINT)
        code = await command.end()
    assert code == 0, command.text
    assert "Traceback" not in command.text
    assert left_in(scratch) == []
    assert list(processes_of(project).values()) == []


def urls(env_file: Path) -> dict[str, str]:
    lines = env_file.read_text().splitlines()
    return dict(line.removeprefix("export ").replace("'", "").split("=", 1) for line in lines)


async def rendered(env_file: Path) -> object:
    """Submit an execution to the URLs of this file and return its result."""
    found = urls(env_file)
    async with AsyncClient(
        amqp_url=found["TURNSTILE_AMQP_URL"], http_url=found["TURNSTILE_API_URL"]
    ) as client:
        return await client.run("reports.render", {"number": 7}, wait_timeout=30)


async def run_named_command(line: str, project: Path) -> None:
    """Run the command that a line of the log names, in a shell as the printed line prepares it."""
    command = line.partition("to_apply_the_code='")[2].partition("'")[0]
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", f"source .turnstile/env; {command}"),
        cwd=project,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await shell.communicate()
    assert shell.returncode == 0, (command, output.decode())


async def test_a_change_is_followed_and_code_that_does_not_load_leaves_the_worker_running(
    project: Path,
) -> None:
    env_file = project / ".turnstile" / "env"
    async with developing(project, environment=BARE) as terminal:
        line = await terminal.wait_for("HTTP API")
        assert line.startswith("dev      | ")
        assert "worker   | " in await terminal.wait_for(" serving worker_id=")
        assert f"{urls(env_file)['TURNSTILE_API_URL']}/api/v1" in line
        assert await rendered(env_file) == "first 7"

        write(project, answer="second")
        assert "reports.py" in await terminal.wait_for("The worker restarts")
        await terminal.wait_for(" serving worker_id=")
        assert await rendered(env_file) == "second 7"

        (project / "reports.py").write_text("def render(:\n")
        assert "the worker continues" in await terminal.wait_for("Changed: reports.py. It does not load")
        assert f'File "{project / "reports.py"}", line 1' in await terminal.wait_for('reports.py", line')
        assert await rendered(env_file) == "second 7"

        # Loads, but cannot start: reported once, and started again at the next change.
        (project / "reports.py").write_text(
            "import sys\nif 'serve' in sys.argv: sys.exit('not today')\n" + code("third")
        )
        await terminal.wait_for("The worker ended by itself with exit code 1")
        write(project, answer="fourth")
        await terminal.wait_for("The worker starts")
        await terminal.wait_for(" serving worker_id=")
        assert await rendered(env_file) == "fourth 7"

        # The definition in the database stays, until the command that the worker names is run. The worker
        # serves the pool of its code, the executions wait in that of the database.
        write(project, answer="fifth", declared="max_concurrent=4, timeout='90s', pool='gpu'")
        line = await terminal.wait_for("action_differs action_ref=reports.render")
        assert "max_concurrent: stored 2, code 4; pool: stored default, code gpu" in line
        assert "timeout: stored none, code 1m30s" in line
        await terminal.wait_for(" serving worker_id=")
        async with AsyncClient(http_url=urls(env_file)["TURNSTILE_API_URL"]) as client:
            waiting = (await client.submit("reports.render", {"number": 7})).execution_id
            shown = (await client.get(waiting)).waiting_on
            assert shown is not None
            assert shown.model_dump() == {"reason": "no_worker", "pool": "default", "other_pools": ["gpu"]}
            await run_named_command(line, project)
            stored = await client.action("reports.render")
            assert (stored.max_concurrent, stored.timeout, stored.pool) == (4, 90, "gpu")
            assert (await client.wait(waiting, timeout=60)).result == "fifth 7"
    assert "\x1b[" not in terminal.text
    assert terminal.text.count("ended by itself") == 1
