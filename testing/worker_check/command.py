"""The command `turnstile worker-check`: runs the cases, some at a time, and prints what is wrong.

Each case has a leader, a worker process and a folder of its own; cases that run together have each a vhost.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import aiormq
import typer

from turnstile.common.broker.topology import EXECUTOR_HEARTBEATS
from turnstile.common.cli import CommandFailed, bad_input
from turnstile.common.exit_codes import ExitCode
from turnstile.localservers import RabbitServer
from turnstile.localservers.processes import run_in_thread
from turnstile.localservers.servers import ScratchFolder
from turnstile.stress.local.launcher import run_until_signal
from turnstile.testing.worker_check.cases import CASES, Case
from turnstile.testing.worker_check.invariants import broken_invariants
from turnstile.testing.worker_check.scene import scene

_PAGE: Final = "docs/worker-protocol.md"
_CASE_SECONDS: Final = 120.0
_LOG_LINES: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a worker did in one case."""

    case: Case
    faults: tuple[str, ...]
    seconds: float
    log: str
    """The end of what the worker printed."""


def worker_check(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="The command that starts the worker, behind `--`."),
    ] = None,
    amqp_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An empty vhost of a RabbitMQ server that no executor uses, like "
            "amqp://guest:guest@127.0.0.1:5672/check. Default: a private server, started for this.",
        ),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="NAME", help="Run this case alone. Repeat it for several cases."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, max=32, help="Cases that run at the same time, on a private server.")
    ] = 4,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases, and run nothing.")] = False,
) -> None:
    """Check that a worker follows the protocol: play the leader against it, case by case.

    The worker serves the action check.run, and takes its settings from the environment, as the page
    docs/worker-protocol.md describes. Each case starts the command anew. Without --amqp-url a private
    RabbitMQ server is started. Example: turnstile worker-check -- node check.js
    """
    chosen = chosen_cases(case or [])
    if list_cases:
        for each in chosen:
            typer.echo(f"{each.name}: {each.rule}")
        return
    if not command:
        raise bad_input("COMMAND: missing; example: turnstile worker-check -- node check.js")
    if shutil.which(command[0]) is None:
        raise bad_input(f"COMMAND: there is no program {command[0]!r}")
    work = _check(command, chosen, amqp_url, jobs)
    raise typer.Exit(run_until_signal(work, what="worker-check", say=typer.echo, exit_code=None))


def chosen_cases(names: Sequence[str]) -> list[Case]:
    """Return the cases of these names, all without a name; raises CommandFailed."""
    known = {each.name: each for each in CASES}
    for name in names:
        if name not in known:
            raise bad_input(f"--case: there is no case {name!r}; `turnstile worker-check --list` lists them")
    return [known[name] for name in names] or CASES


async def _check(command: Sequence[str], cases: Sequence[Case], amqp_url: str | None, jobs: int) -> int:
    began_at = time.monotonic()
    async with _vhosts(amqp_url, min(jobs, len(cases))) as vhosts:
        failed = 0
        async for verdict in run_cases(command, cases, vhosts):
            _print(verdict)
            failed += bool(verdict.faults)
    seconds = time.monotonic() - began_at
    typer.echo(f"{len(cases) - failed} of {len(cases)} cases passed, {failed} failed, in {seconds:.0f} s")
    return ExitCode.FAILED if failed else ExitCode.OK


def _print(verdict: Verdict) -> None:
    case = verdict.case
    typer.echo(f"{'FAILED' if verdict.faults else 'passed'}  {case.name}  ({verdict.seconds:.1f} s)")
    if verdict.faults:
        typer.echo(f"    Rule: {case.rule}\n    See {_PAGE}, section '{case.section}'.")
        for fault in verdict.faults:
            typer.echo(f"    - {fault}")
        if verdict.log:
            typer.echo("    The worker printed at the end:")
            for line in verdict.log.splitlines():
                typer.echo(f"      {line}")


async def run_cases(
    command: Sequence[str], cases: Sequence[Case], vhosts: Sequence[str]
) -> AsyncIterator[Verdict]:
    """Yield the verdicts as they come; one case runs at a time on each of these vhosts, by their URLs."""
    waiting, done = list(reversed(cases)), asyncio.Queue[Verdict]()

    async def serve(amqp_url: str) -> None:
        while waiting:
            done.put_nowait(await run_case(command, waiting.pop(), amqp_url))

    async with asyncio.TaskGroup() as tasks:
        for amqp_url in vhosts:
            tasks.create_task(serve(amqp_url), name="cases")
        for _ in cases:
            yield await done.get()


async def run_case(command: Sequence[str], case: Case, amqp_url: str) -> Verdict:
    """Run one case, with a new worker."""
    began_at, faults = time.monotonic(), list[str]()
    with tempfile.TemporaryDirectory(prefix="worker-check-") as name:
        folder = Path(name)
        async with scene(amqp_url, command, folder) as played:
            try:
                async with asyncio.timeout(_CASE_SECONDS):
                    await case.play(played)
            except AssertionError as fault:
                faults.append(str(fault))
            except TimeoutError:
                faults.append(f"The case was not over after {_CASE_SECONDS:g} s.")
            faults += broken_invariants(played)
        lines = (folder / "worker.log").read_text(errors="replace").splitlines()
    return Verdict(
        case=case,
        faults=tuple(dict.fromkeys(faults)),
        seconds=time.monotonic() - began_at,
        log="\n".join(lines[-_LOG_LINES:]),
    )


@asynccontextmanager
async def _vhosts(amqp_url: str | None, count: int) -> AsyncIterator[list[str]]:
    """Lend URLs of vhosts: the given one, or new ones on a private server."""
    if amqp_url is not None:
        await _is_free(amqp_url)
        yield [amqp_url]
        return
    typer.echo("Starting a private RabbitMQ server")
    scratch = ScratchFolder.create(in_memory=True)
    try:
        server = await run_in_thread(lambda: RabbitServer.start(scratch.path / "rabbitmq"))
        try:
            yield [await run_in_thread(server.create_vhost, f"check-{each}") for each in range(count)]
        finally:
            await run_in_thread(server.kill)
            server.close()
    finally:
        scratch.delete()


async def _is_free(amqp_url: str) -> None:
    """Raise CommandFailed unless the broker answers and its vhost has no queue of an executor."""
    if urlsplit(amqp_url).scheme != "amqp":
        raise bad_input(
            "--amqp-url: expected amqp://...: the kit cuts the connection, which TLS would notice"
        )
    try:
        connection = await aiormq.connect(amqp_url)
    except (aiormq.exceptions.AMQPError, OSError) as error:
        raise CommandFailed(
            f"--amqp-url: the broker cannot be used: {error}", exit_code=ExitCode.UNREACHABLE
        ) from None
    try:
        channel = await connection.channel()
        await channel.queue_declare(EXECUTOR_HEARTBEATS, passive=True)
    except aiormq.exceptions.ChannelNotFoundEntity:
        return
    finally:
        await connection.close()
    raise bad_input("--amqp-url: the vhost has the queues of an executor; give a vhost of its own")
