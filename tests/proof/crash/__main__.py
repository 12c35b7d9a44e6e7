"""`make crash`: try every crash point alone, the first, the second and the seventh time, and server crashes.

Each round has a database and a vhost of its own. The first trial that is wrong is the last: that stays in the
history, so every later one would show it again.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial

from tests.proof.crash.database_crashes import TRIALS, tried_crash
from tests.proof.crash.environment import Environment, running_environment
from tests.proof.crash.trial import cases, tried
from tests.proof.trials import Trial, run_trials
from turnstile.localservers import LocalServers
from turnstile.migrations.run import migrate


def main() -> int:
    """Try the cases whose name contains one of the given words, or all."""
    parser = argparse.ArgumentParser(prog="make crash", description=__doc__)
    parser.add_argument("words", nargs="*", help="only points whose name contains one of these")
    parser.add_argument("--times", type=int, nargs="*", default=[1, 2, 7])
    options = parser.parse_args()
    with LocalServers.start(durable=False) as servers, asyncio.Runner() as runner:
        return run_trials(_trials(servers, runner, options.times), words=options.words, stop=True)


def _trials(
    servers: LocalServers, runner: asyncio.Runner, rounds: Sequence[int]
) -> Iterator[tuple[str, Trial]]:
    """Yield the trials of each round, whose system runs meanwhile."""

    def run(trial: Callable[[], Awaitable[list[str]]]) -> list[str]:
        return runner.run(_awaited(trial))

    for times in rounds:
        system = AsyncExitStack()
        env = runner.run(_started(servers, times, system))
        try:
            for case in cases(times):
                yield case.name, partial(run, partial(tried, env, [case]))
            for name in TRIALS:
                crash = partial(tried_crash, env, servers.postgresql, name, times)
                yield f"{name}:{times}", partial(run, crash)
        finally:
            runner.run(system.aclose())


async def _awaited(trial: Callable[[], Awaitable[list[str]]]) -> list[str]:
    return await trial()


async def _started(servers: LocalServers, times: int, system: AsyncExitStack) -> Environment:
    database_url = await asyncio.to_thread(servers.postgresql.create_database, f"crash_{times}")
    amqp_url = await asyncio.to_thread(servers.rabbitmq.create_vhost, f"crash_{times}")
    await migrate(database_url)
    return await system.enter_async_context(running_environment(database_url, amqp_url))


if __name__ == "__main__":
    sys.exit(main())
