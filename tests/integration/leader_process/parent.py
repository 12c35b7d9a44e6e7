"""`executor serve` in small: a leader process beside an HTTP that only waits. Prints what its leader says.

`http` says what is under way at the stop: `idle`, or `slow`, which needs its whole time.
"""

import asyncio
import sys

from turnstile.common.lifecycle import run_service
from turnstile.executor.leader_process import LeaderSettings, LeaderStatus
from turnstile.executor.serving import LeaderService, serve_both


async def serve(stop: asyncio.Event) -> None:
    name, database_url, amqp_url, http = sys.argv[1:]
    leader = LeaderService(LeaderSettings(executor=name, database_url=database_url, amqp_url=amqp_url))
    leader.on_status = lambda status: show(leader, status)

    async def serve_http(stop: asyncio.Event) -> None:
        await stop.wait()
        if http == "slow":
            await asyncio.sleep(60)
        print("http ended", flush=True)

    await serve_both(serve_http, leader, stop, drain_seconds=1.0)
    print("served", flush=True)


def show(leader: LeaderService, status: LeaderStatus) -> None:
    print(f"{leader.pid} {'leads' if status.is_leading else 'waits'}", flush=True)


if __name__ == "__main__":
    run_service(serve)
