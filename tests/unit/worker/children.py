"""Which child process a call runs in: its actions have one, `pid`, that tells."""

from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import result_of
from turnstile.worker.runners.child_pool import ChildRunner


async def pid_of(runner: ChildRunner, make_call: MakeCall) -> int:
    return int(result_of(await runner.run(make_call("pid"))))
