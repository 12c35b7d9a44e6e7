"""The contestants: processes, configuration and guarantees of each system.

Plain values; importing them needs none of the systems' packages. `name` is the heading in docs/peers.md;
`packages` are those of the dependency group.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.peers.job import LIMIT, Group

_ALL: Final = tuple(Group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Processes of one kind: `python -m` with these arguments."""

    name: str
    arguments: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One configuration of a system; a row in the table of each of its groups."""

    name: str
    programs: tuple[Program, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[Group, ...] = _ALL
    limited_to: int = LIMIT
    """The actual limit of its `limited` actions."""
    configuration: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One system."""

    name: str
    module: str
    packages: tuple[str, ...]
    """The packages whose versions are printed; the first is the system's own. Empty: this project."""
    imports: tuple[str, ...]
    """Required imports."""
    variants: tuple[Variant, ...]
    submits: str
    results: str
    """The handling of results."""
    crash: str
    """The fate of a job whose worker is killed."""
    limits: str
    needs_redis: bool = False
    on_postgresql: bool = False
    """It keeps its jobs in PostgreSQL: also measured under a snapshot that is held open there."""


def _module(name: str) -> str:
    return f"benchmarks.peers.systems.on_{name}"


def _celery(*options: str) -> tuple[Program, ...]:
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING")
    return (
        Program(name="worker", arguments=("celery", "-A", _module("celery"), "worker", *quiet, *options)),
    )


def _procrastinate(count: int) -> tuple[Program, ...]:
    # By default it polls every 5 s for jobs whose lock was released: there is no notification.
    options = ("--concurrency", "10", "--fetch-job-polling-interval", "0.01")
    arguments = ("procrastinate", "--app", f"{_module('procrastinate')}.app", "worker", *options)
    return (Program(name="worker", arguments=arguments, count=count),)


def _pgqueuer(batch: int, groups: tuple[Group, ...], why: str) -> tuple[Variant, Variant]:
    one, two = (
        Variant(
            name=f"{_processes(count)}, batches of {batch}",
            programs=(Program(name="worker", arguments=(_module("pgqueuer"), str(batch)), count=count),),
            groups=groups,
            configuration=f"batch size {batch}: {why}",
        )
        for count in (1, 2)
    )
    return one, two


def _processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"


def _taskiq(workers: int, tasks: int) -> tuple[Program, ...]:
    options = ("--workers", str(workers), "--max-async-tasks", str(tasks), "--log-level", "WARNING")
    return (Program(name="worker", arguments=("taskiq", "worker", f"{_module('taskiq')}:broker", *options)),)


def _dbos(count: int) -> tuple[Program, ...]:
    return (Program(name="worker", arguments=(_module("dbos"),), count=count),)


def _awa(count: int, workers: int) -> tuple[Program, ...]:
    return (Program(name="worker", arguments=(_module("awa"), str(workers)), count=count),)


TURNSTILE: Final = Contestant(
    name="Turnstile",
    module=_module("turnstile"),
    packages=(),
    imports=(),
    variants=(
        Variant(
            name="2 workers",
            programs=(
                Program(name="executor", arguments=("turnstile.executor.cli", "serve")),
                Program(
                    name="worker",
                    arguments=("turnstile.worker.cli", "serve", "--actions", _module("turnstile")),
                    count=2,
                ),
            ),
            environment={"TURNSTILE_LOG_LEVEL": "WARNING", "TURNSTILE_WORKER_CONCURRENCY": "50"},
            configuration="1 executor, 2 workers of concurrency 50; quorum queues",
        ),
    ),
    submits="published in batches, persistent, confirmed by the broker",
    results="in PostgreSQL, with the whole history",
    crash="run again, at the head of its queue; nothing that waits is lost",
    limits="any number, per action and per key",
    on_postgresql=True,
)

CELERY: Final = Contestant(
    name="Celery",
    module=_module("celery"),
    packages=("celery", "kombu"),
    imports=("celery", "psycopg"),
    variants=(
        Variant(
            name="2 processes, forgetful",
            programs=_celery("--concurrency", "2", "--prefetch-multiplier", "128"),
            groups=(Group.FREE,),
            configuration="prefork 2, prefetch multiplier 128, transient, results ignored, early ack",
        ),
        Variant(
            name="2 processes, safe",
            programs=_celery("--concurrency", "2", "--prefetch-multiplier", "128"),
            environment={"BENCH_CELERY_SAFE": "1"},
            groups=(Group.FREE,),
            configuration="prefork 2, prefetch multiplier 128, persistent and confirmed, late ack",
        ),
        Variant(
            name="1 process, 1 at a time",
            programs=_celery("--concurrency", "1", "--prefetch-multiplier", "1"),
            groups=(Group.SINGLE,),
            configuration="forgetful, prefork 1, prefetch 1: one job at a time over all actions, not a limit",
        ),
    ),
    submits="one publish each over one open connection",
    results="forgetful: dropped; safe: in PostgreSQL",
    crash="forgetful: lost; safe: run again",
    limits="none on running jobs",
)

DRAMATIQ: Final = Contestant(
    name="Dramatiq",
    module=_module("dramatiq"),
    packages=("dramatiq", "pika", "redis"),
    imports=("dramatiq", "pika", "redis"),
    variants=(
        Variant(
            name="2 processes",
            programs=(
                Program(
                    name="worker",
                    arguments=("dramatiq", _module("dramatiq"), "--processes", "2", "--threads", "8"),
                ),
            ),
            configuration="2 processes of 8 threads, prefetch 16; limiter retries after 5 to 100 ms",
        ),
    ),
    submits="one publish each over one open connection, persistent, not confirmed",
    results="dropped",
    crash="run again; the limiter's slot stays taken until its time to live (15 min) is over",
    limits="any number, by a limiter in Redis: what finds no slot goes back to the broker",
    needs_redis=True,
)

TASKIQ: Final = Contestant(
    name="taskiq",
    module=_module("taskiq"),
    packages=("taskiq", "taskiq-aio-pika"),
    imports=("taskiq", "taskiq_aio_pika"),
    variants=(
        Variant(
            name="2 processes",
            programs=_taskiq(2, 100),
            groups=(Group.FREE,),
            configuration="2 processes of 100 tasks, prefetch 200, quorum queue, ack when done",
        ),
        Variant(
            name="1 process, 1 at a time",
            programs=_taskiq(1, 1),
            groups=(Group.SINGLE,),
            configuration="1 process, 1 task: one job at a time over all actions, not a limit",
        ),
    ),
    submits="100 publishes at a time, persistent, confirmed",
    results="dropped",
    crash="run again",
    limits="none",
)

PROCRASTINATE: Final = Contestant(
    name="Procrastinate",
    module=_module("procrastinate"),
    packages=("procrastinate", "psycopg"),
    imports=("procrastinate", "psycopg"),
    variants=tuple(
        Variant(
            name=_processes(count),
            programs=_procrastinate(count),
            limited_to=1,
            configuration=f"{count} of concurrency 10, polling every 10 ms (default 5 s); lock per action",
        )
        for count in (1, 2)
    ),
    submits="deferred in batches of 500",
    results="none; the state of each job stays in PostgreSQL",
    crash="stays as running until stalled jobs are retried",
    limits="one (a lock)",
    on_postgresql=True,
)

PGQUEUER: Final = Contestant(
    name="PgQueuer",
    module=_module("pgqueuer"),
    packages=("pgqueuer", "asyncpg"),
    imports=("pgqueuer",),
    variants=(
        *_pgqueuer(100, (Group.FREE,), "the largest batch that gains; asyncpg and uvloop"),
        *_pgqueuer(
            10,
            (Group.LIMITED, Group.TIMED),
            "the default; a larger batch than the limits fill waits 100 ms to be logged",
        ),
        *_pgqueuer(1, (Group.SINGLE,), "logs, and so frees, each job at once"),
    ),
    submits="enqueued in batches of 1,000",
    results="none; a log of states in PostgreSQL",
    crash="taken again after 30 s without a heartbeat",
    limits="any number, per entrypoint",
    on_postgresql=True,
)

DBOS: Final = Contestant(
    name="DBOS",
    module=_module("dbos"),
    packages=("dbos", "psycopg"),
    imports=("dbos",),
    variants=(
        Variant(
            name="1 process",
            programs=_dbos(1),
            environment={"BENCH_DBOS_POLLING_SECONDS": "0.1"},
            configuration="queues polled every 100 ms (default 1 s), global_concurrency per queue",
        ),
        Variant(
            name="2 processes",
            programs=_dbos(2),
            environment={"BENCH_DBOS_POLLING_SECONDS": "0.1"},
            configuration="the same twice",
        ),
        Variant(
            name="1 process, polling every 10 ms",
            programs=_dbos(1),
            environment={"BENCH_DBOS_POLLING_SECONDS": "0.01"},
            groups=(Group.SINGLE,),
            configuration="queues polled every 10 ms, which costs CPU while idle",
        ),
    ),
    submits="one transaction each",
    results="in PostgreSQL, with each step",
    crash="continues at its last step when its process starts again",
    limits="any number, per queue",
    on_postgresql=True,
)

AWA: Final = Contestant(
    name="awa",
    module=_module("awa"),
    packages=("awa-pg",),
    imports=("awa",),
    variants=(
        Variant(
            name="1 process",
            programs=_awa(1, 256),
            configuration="queue storage; max_workers 256 in one queue, or the limit in a queue per action",
        ),
        Variant(
            name="2 processes",
            programs=_awa(2, 128),
            groups=(Group.FREE,),
            configuration="the same twice, max_workers 128 each",
        ),
    ),
    submits="copied in batches of 1,000 (enqueue_many_copy)",
    results="none; the state of each job in PostgreSQL",
    crash="run again once its heartbeat is stale",
    limits="any number, per queue and process",
    on_postgresql=True,
)

CONTESTANTS: Final = (TURNSTILE, CELERY, DRAMATIQ, TASKIQ, PROCRASTINATE, PGQUEUER, DBOS, AWA)
