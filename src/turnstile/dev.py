"""Runs what a developer of actions needs, in one terminal: `turnstile dev --actions reports`.

In: modules of the current folder. Out: private servers, one executor and one worker, whose logs are shown
under their names, and a file that sets the URLs in a shell. A changed file restarts the worker, unless the
modules no longer load: then the error is shown and the worker continues. No process survives this one.
"""

import asyncio
import fcntl
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from watchfiles import awatch

from turnstile.common.cli import CommandFailed, environment_name
from turnstile.common.domain.durations import parse_duration
from turnstile.common.exit_codes import ExitCode
from turnstile.common.settings import CommonSettings
from turnstile.localservers import LocalServers, ServerFailed, running_servers
from turnstile.localservers.ports import same_ports
from turnstile.localservers.services import Service
from turnstile.stress.local.launcher import (
    Deployment,
    System,
    action_options,
    create_database_and_vhost,
    run_until_signal,
    running_system,
)
from turnstile.worker.settings import WorkerSettings

_NAME: Final = "turnstile"
_FOLDER: Final = Path(".turnstile")
_SETTINGS: Final = {
    "TURNSTILE_DRAIN_TIMEOUT": "3s",
    # What actions print appears at once.
    "PYTHONUNBUFFERED": "1",
}
_WORKER_SETTINGS: Final = {"TURNSTILE_STOP_GRACE": "1s"}
_STOP_SECONDS: Final = 7.0
"""Beside the drain."""
_POLL_SECONDS: Final = 0.1
_CHECK_SECONDS: Final = 60.0
_GROUPED_MS: Final = 100
"""What is saved within this time is one change."""
_FILES_NAMED: Final = 5
_IGNORED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


def dev(
    actions: Annotated[
        list[str],
        typer.Option(
            "--actions",
            metavar="MODULE[:NAME]",
            help="Module that declares actions, or one action of it. Repeat it for several modules. "
            "Modules in the current folder can be imported. Example: --actions reports.actions",
        ),
    ],
    data_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep the data of PostgreSQL and RabbitMQ in this folder for the next start. "
            "Default: all data are deleted at the end.",
        ),
    ] = None,
) -> None:
    """Run private servers, an executor, and a worker that follows your changes.

    Starts PostgreSQL, RabbitMQ, one executor with the dashboard, and one worker for these modules, and shows
    their logs. A changed .py file of the current folder restarts the worker; if the modules do not load, the
    error is shown, and the worker continues with the previous code. The ports are the same at each start.
    Ctrl-C ends everything.
    """
    terminal = Terminal.of_this_process()
    work = _run(terminal, actions, data_folder)
    raise typer.Exit(run_until_signal(work, what="turnstile dev", say=terminal.say, exit_code=ExitCode.OK))


async def _run(terminal: "Terminal", actions: Sequence[str], data_folder: Path | None) -> int:
    folder = data_folder or _FOLDER
    with _used_by_one(folder), same_ports(folder / "ports"):
        kept = "deleted at the end" if data_folder is None else f"kept in {data_folder}"
        terminal.say(f"Starting PostgreSQL and RabbitMQ; their data are {kept}")
        async with running_servers(data_folder) as servers:
            try:
                await _serve(terminal, servers, actions, folder)
            finally:
                if data_folder is not None:
                    terminal.say(
                        "Stopping the servers; RabbitMQ stores its data, which takes several seconds"
                    )
    raise AssertionError("ended by a signal only")


async def _serve(terminal: "Terminal", servers: LocalServers, actions: Sequence[str], folder: Path) -> None:
    """Run the services until one ends that must not: raises ServerFailed."""
    database_url, amqp_url = await create_database_and_vhost(servers.postgresql, servers.rabbitmq, _NAME)
    deployment = Deployment(
        database_url=database_url,
        amqp_url=amqp_url,
        folder=servers.folder / "logs",
        settings=_SETTINGS,
        last_signal=signal.SIGTERM,
        stop_seconds=_STOP_SECONDS,
    )
    executor = deployment.executor("executor")
    worker = deployment.worker("worker", actions=actions, settings=_worker_settings(executor.url))
    worker.runs_in, worker.stop_seconds = Path.cwd(), _STOP_SECONDS + _drain_seconds(worker.environment)
    async with (
        _shown_logs(terminal, [executor, worker]),
        running_system(deployment, [executor]) as system,
        _reloaded(terminal, worker, actions, ignored=folder) as reloader,
    ):
        terminal.show_urls(servers, system, folder / "env")
        while True:
            system.check_running()
            _check_running(servers)
            reloader.check()
            terminal.check()
            await asyncio.sleep(_POLL_SECONDS)


def _worker_settings(http_url: str) -> dict[str, str]:
    """Return what the worker gets beside URLs: the settings of workers alone are the developer's."""
    fixed = {"worker_name", "worker_http_port", "worker_http_host", "api_url", "api_token"}
    own = WorkerSettings.model_fields.keys() - CommonSettings.model_fields.keys() - fixed
    names = {environment_name(name) for name in own | {"drain_timeout", "log_level"}}
    given = {name: value for name, value in os.environ.items() if name in names}
    return _WORKER_SETTINGS | {"TURNSTILE_API_URL": http_url} | given


def _drain_seconds(environment: Mapping[str, str]) -> float:
    try:
        return parse_duration(environment["TURNSTILE_DRAIN_TIMEOUT"])
    except ValueError:
        # The worker says so, and does not start.
        return 0.0


def _check_running(servers: LocalServers) -> None:
    for name, server in (("PostgreSQL", servers.postgresql), ("RabbitMQ", servers.rabbitmq)):
        if not server.is_running:
            raise ServerFailed(f"{name} ended by itself; its logs are in {server.folder}")


@contextmanager
def _used_by_one(folder: Path) -> Iterator[None]:
    """Create the folder, unseen by git, and hold it; raises CommandFailed where another process does."""
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / ".gitignore").write_text("*\n", encoding="ascii")
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFailed(
                f"{folder} is in use by another `turnstile dev`; end that one, or name another folder "
                "with --data-folder",
                exit_code=ExitCode.USAGE,
            ) from None
        yield


@asynccontextmanager
async def _reloaded(
    terminal: "Terminal", worker: Service, actions: Sequence[str], *, ignored: Path
) -> AsyncIterator["_Reloader"]:
    """Run the worker, and restart it when files of the current folder change."""
    reloader = _Reloader(terminal, worker, actions, ignored)
    try:
        await reloader.start()
        yield reloader
    finally:
        await reloader.end()


class _Reloader:
    """Runs the worker, and restarts it when its code changes."""

    def __init__(self, terminal: "Terminal", worker: Service, actions: Sequence[str], ignored: Path) -> None:
        self._terminal = terminal
        self._worker = worker
        self._check = Service(
            name="check",
            arguments=["turnstile.worker.cli", "actions", *action_options(actions)],
            folder=worker.folder,
            environment=worker.environment,
            runs_in=worker.runs_in,
        )
        self._folder = Path.cwd()
        self._ignored = ignored.resolve()
        self._is_serving = False
        self._watching = asyncio.create_task(self._watch(), name="watch-files")

    def check(self) -> None:
        """Report a worker that has ended by itself; raises where files cannot be watched."""
        if self._watching.done():
            self._watching.result()
        if self._is_serving and not self._worker.is_running:
            self._is_serving = False
            self._terminal.say(
                f"The worker ended by itself with exit code {self._worker.exit_code}; "
                "it starts again at the next change of a file"
            )

    async def start(self) -> None:
        """Start the worker; from here on, no change is missed."""
        await self._restart()

    async def end(self) -> None:
        """Stop the worker."""
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self._worker.end(signal.SIGTERM)

    async def _watch(self) -> None:
        changes = awatch(
            self._folder,
            watch_filter=lambda _, path: is_code(Path(path), folder=self._folder, ignored=self._ignored),
            step=_GROUPED_MS,
            ignore_permission_denied=True,
        )
        try:
            async for changed in changes:
                await self._reload([Path(path) for _, path in changed])
        except (OSError, RuntimeError) as error:
            raise CommandFailed(
                f"{self._folder} cannot be watched: {error}; set WATCHFILES_FORCE_POLLING=1 to poll instead",
                exit_code=ExitCode.FAILED,
            ) from error

    async def _reload(self, changed: Sequence[Path]) -> None:
        names = sorted({str(path.relative_to(self._folder)) for path in changed})
        more = f" and {len(names) - _FILES_NAMED} more" if len(names) > _FILES_NAMED else ""
        files = ", ".join(names[:_FILES_NAMED]) + more
        if (problem := await self._problem()) is not None:
            runs_on = "the worker continues with the previous code" if self._is_serving else "no worker runs"
            self._terminal.say(f"Changed: {files}. It does not load; {runs_on}:\n{problem}", failed=True)
            return
        self._terminal.say(f"Changed: {files}. The worker {'re' if self._is_serving else ''}starts")
        await self._restart()

    async def _restart(self) -> None:
        self._is_serving = False
        await self._worker.end(signal.SIGTERM)
        await self._worker.start()
        self._is_serving = True

    async def _problem(self) -> str | None:
        """Load the modules in a fresh process; return what it reports where they do not load."""
        self._check.log.unlink(missing_ok=True)
        try:
            await self._check.start()
            async with asyncio.timeout(_CHECK_SECONDS):
                while self._check.is_running:  # noqa: ASYNC110  (the process has no event)
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            return f"it is still being imported after {_CHECK_SECONDS:g} s"
        else:
            failed = self._check.exit_code != 0
            return self._check.log.read_text(encoding="utf-8", errors="replace") if failed else None
        finally:
            await self._check.end(signal.SIGKILL)


def is_code(file: Path, *, folder: Path, ignored: Path) -> bool:
    """Whether a change of this file below `folder`, outside of `ignored`, changes the code of the project."""
    if file.suffix != ".py" or file.is_relative_to(ignored):
        return False
    folders = file.relative_to(folder).parent.parts
    return not any(name.startswith(".") or name in _IGNORED_FOLDERS for name in folders)


@asynccontextmanager
async def _shown_logs(terminal: "Terminal", services: Sequence[Service]) -> AsyncIterator[None]:
    """Show what the services log, each line under the name of its service, to the end."""
    logs = [_Log(service) for service in services]

    async def follow() -> None:
        while True:
            for log in logs:
                terminal.show(log.name, log.new_lines())
            await asyncio.sleep(_POLL_SECONDS)

    following = asyncio.create_task(follow(), name="show-logs")
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        for log in logs:
            terminal.show(log.name, log.new_lines())


class _Log:
    """The growing log of a service; that of an earlier start is deleted."""

    def __init__(self, service: Service) -> None:
        self.name = service.name
        self._file = service.log
        self._file.unlink(missing_ok=True)
        self._at = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Return the lines that are complete since the last call."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._at)
                read = file.read()
        except FileNotFoundError:
            return []
        self._at += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        return [line.decode("utf-8", errors="replace") for line in lines]


_BOLD, _RED, _GREEN, _YELLOW, _BLUE, _CYAN = "1", "31", "32", "33", "34", "36"
_SOURCES: Final = {"dev": _BLUE, "executor": _CYAN, "worker": _GREEN}
_WIDTH: Final = max(map(len, _SOURCES))
_LEVELS: Final = {"WARNING": _YELLOW, "ERROR": _RED, "CRITICAL": _RED}
_LEVEL: Final = re.compile(r"\d\d:\d\d:\d\d\.\d{3} ([A-Z]+) ")
"""The start of a line of a log: the time, then the level."""


class Terminal:
    """Standard output: lines under the name of their source, in colours where a person reads them."""

    def __init__(self, *, has_colours: bool) -> None:
        self._has_colours = has_colours
        self._broken: OSError | None = None

    @classmethod
    def of_this_process(cls) -> "Terminal":
        """Use colours on a terminal that has them, unless NO_COLOR is set (no-color.org)."""
        is_dumb = os.environ.get("TERM", "dumb") == "dumb"
        return cls(has_colours=sys.stdout.isatty() and not is_dumb and not os.environ.get("NO_COLOR"))

    def say(self, text: str, *, failed: bool = False) -> None:
        """Show lines of this command."""
        first, *more = text.splitlines()
        self.show("dev", [self._coloured(first, _RED if failed else _BOLD), *more])

    def show(self, source: str, lines: Sequence[str]) -> None:
        """Print lines under the name of their source. Never raises: `check` does."""
        prefix = self._coloured(f"{source:<{_WIDTH}} |", _SOURCES[source])
        for line in lines:
            level = _LEVEL.match(line)
            colour = None if level is None else _LEVELS.get(level[1])
            self._print(f"{prefix} {line if colour is None else self._coloured(line, colour)}")

    def show_urls(self, servers: LocalServers, system: System, env_file: Path) -> None:
        """Write the file that sets the URLs in a shell, and print all of them."""
        system.write_exports(env_file)
        deployment, rabbitmq = system.deployment, servers.rabbitmq
        self.say(
            f"""Dashboard   {system.http_url}/
HTTP API    {system.http_url}/api/v1   (described at {system.http_url}/docs)
Database    {deployment.database_url}
Broker      {deployment.amqp_url}
            {rabbitmq.management_url}   (management; user and password as in the URL of the broker)
Logs        {deployment.folder}
Shell       source {env_file}   (sets these URLs for `executor` and for clients, also after the next start)
Ctrl-C ends everything"""
        )

    def check(self) -> None:
        """Raise OSError where lines could not be printed."""
        if self._broken is not None:
            raise self._broken

    def _coloured(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._has_colours else text

    def _print(self, line: str) -> None:
        if self._broken is not None:
            return
        try:
            print(line, flush=True)  # noqa: T201
        except OSError as error:
            self._broken = error
