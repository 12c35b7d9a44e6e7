"""`make crash`: try every crash point alone, the first, the second and the seventh time, and server crashes.

Each round has a database and a vhost of its own. Prints one line per case: the point, the time until
everything had drained and was checked, and what is wrong. Exit code 1 on any fault.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tests.proof.crash.database_crashes import TRIALS, tried_crash
from tests.proof.crash.environment import running_environment
from tests.proof.crash.trial import cases, tried
from tests.proof.trials import show
from turnstile.localservers import LocalServers
from turnstile.migrations.run import migrate


def main() -> int:
    """Try the cases whose name contains one of the given words, or all."""
    parser = argparse.ArgumentParser(prog="make crash", description=__doc__)
    parser.add_argument("words", nargs="*", help="only points whose name contains one of these")
    parser.add_argument("--times", type=int, nargs="*", default=[1, 2, 7])
    options = parser.parse_args()
    with LocalServers.start(durable=False) as servers:
        wrong = 0
        for times in options.times:
            wrong += asyncio.run(_round(servers, times, options.words))
    print(f"{wrong} faults")
    return 1 if wrong else 0


async def _round(servers: LocalServers, times: int, words: Sequence[str]) -> int:
    database_url = await asyncio.to_thread(servers.postgresql.create_database, f"crash_{times}")
    amqp_url = await asyncio.to_thread(servers.rabbitmq.create_vhost, f"crash_{times}")
    await migrate(database_url)
    wrong = 0
    async with running_environment(database_url, amqp_url) as env:
        trials: dict[str, Callable[[], Awaitable[list[str]]]] = {
            case.name: partial(tried, env, [case]) for case in cases(times)
        }
        for name in TRIALS:
            trials[f"{name}:{times}"] = partial(tried_crash, env, servers.postgresql, name, times)
        for name, trial in trials.items():
            if words and not any(word in name for word in words):
                continue
            began = time.monotonic()
            faults = await trial()
            show(name, began, faults)
            wrong += len(faults)
            if faults:
                # What is wrong stays in the history: every later case of the round would show it again.
                break
    return wrong


if __name__ == "__main__":
    sys.exit(main())
