"""Commands as a user runs them: their output, their end, and what those leave that start private servers."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from typer.testing import CliRunner

from tests.integration.localservers.watching import processes_of
from turnstile.executor.cli import app

_WAIT_SECONDS = 120.0
"""Longer than private servers take to start on a busy machine."""


async def printed(*arguments: str, **settings: str) -> str:
    """Return what a command of the executor prints, which runs in this process."""
    ended = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=settings)
    assert ended.exit_code == 0, ended.output
    return ended.output


class Command:
    """A running command and its output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.text = ""

    async def wait_for(self, words: str) -> str:
        """Read until a line contains `words`, and return that line."""
        assert self.process.stdout
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while line := (await self.process.stdout.readline()).decode():
                    self.text += line
                    if words in line:
                        return line
        except TimeoutError:
            raise AssertionError(f"no line with {words!r} in time:\n{self.text}") from None
        raise AssertionError(f"ended without {words!r}:\n{self.text}")

    async def end(self) -> int:
        """Read to the end and return the exit code."""
        assert self.process.stdout
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while line := (await self.process.stdout.readline()).decode():
                    self.text += line
                return await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"not ended in time:\n{self.text}") from None


@asynccontextmanager
async def started(
    arguments: Sequence[str], *, cwd: Path, scratch_folder: Path, environment: Mapping[str, str] = os.environ
) -> AsyncIterator[Command]:
    """Run a command that puts its temporary files into `scratch_folder`."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=cwd,
        env={**environment, "TMPDIR": str(scratch_folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def left_in(scratch_folder: Path) -> list[str]:
    """Return the remaining files of a folder and the commands of its processes."""
    return [*map(str, scratch_folder.iterdir()), *processes_of(scratch_folder).values()]
