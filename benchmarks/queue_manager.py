"""What a decision costs: the queue manager alone, in one process, without input and output.

Each load admits and ends executions in turns of one batch, and reports the processor time from admitted to
ended; then the memory of a million executions that wait. Run as `python -m benchmarks.queue_manager`.
"""

import argparse
import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.decisions import Granted
from turnstile.executor.queue_manager.definitions import Action, Resource, Use
from turnstile.executor.queue_manager.inputs import (
    Admit,
    DefineAction,
    DefineResource,
    Ended,
    Input,
    WorkerChanged,
)
from turnstile.executor.queue_manager.state import State
from turnstile.executor.queue_manager.transitions import enqueue, queue_for
from turnstile.executor.queue_manager.waiting import Waiting

BATCH = 100
_WAITING = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A system, and what is submitted to it in turn."""

    name: str
    definitions: tuple[Input, ...]
    requests: tuple[tuple[str, str], ...]
    """Action and key of one request after the other."""
    workers: int = 10
    slots: int = 100
    waiting: int = 1000
    """How many wait all the time."""
    seconds: float | None = None
    """How long each execution runs, as its worker says: short ones have runs."""


def _actions(count: int, limit: int | None, **more: object) -> tuple[Input, ...]:
    return tuple(
        DefineAction(action=Action(ref=f"a{n}", max_concurrent=limit, **more))  # type: ignore[arg-type]
        for n in range(count)
    )


def _loads() -> Iterator[Load]:
    ten = tuple((f"a{n}", "") for n in range(10))
    yield Load(name="10 actions, limit 4", definitions=_actions(10, 4), requests=ten)
    yield Load(name="no limit", definitions=_actions(10, None), requests=ten, waiting=0)
    keys = tuple(("a0", str(n)) for n in range(10_000))
    yield Load(name="10,000 keys, limit 1", definitions=_actions(1, 1), requests=keys, waiting=10_000)
    shared = DefineResource(resource=Resource(name="r", capacity=40))
    yield Load(
        name="a resource shared by 10 actions",
        definitions=(shared, *_actions(10, None, uses=(Use(resource="r"),))),
        requests=ten,
    )
    fair = _actions(1, None, max_concurrent_total=40, order="fair")
    yield Load(name="1,000 keys, fair total", definitions=fair, requests=keys[:1000])
    yield Load(name="a full pool", definitions=_actions(10, None), requests=ten, workers=4, slots=10)
    yield Load(name="10 actions, limit 4, in runs", definitions=_actions(10, 4), requests=ten, seconds=0.001)
    yield Load(
        name="a full pool, in runs", definitions=_actions(10, None), requests=ten, workers=4, slots=10,
        waiting=3000, seconds=0.001,
    )  # fmt: skip
    yield Load(
        name="10,000 keys, limit 1, in runs", definitions=_actions(1, 1), requests=keys, waiting=10_000,
        seconds=0.001,
    )  # fmt: skip
    yield Load(name="100 workers, full", definitions=_actions(10, None), requests=ten, workers=100, slots=4)


def _system(load: Load) -> State:
    state = State()
    workers = [
        WorkerChanged(worker_id=f"w{n}", pools=frozenset({"default"}), concurrency=load.slots)
        for n in range(load.workers)
    ]
    decide(state, [*load.definitions, *workers], 0.0)
    return state


def measure(load: Load, seconds: float) -> tuple[float, float, float]:
    """Return microseconds of processor time from admitted to ended, and milliseconds of the slowest turn.

    The first is the mean, the second that of a tenth of the turns, in which no neighbour took the processor.
    """
    state = _system(load)
    place = 0
    running: list[Granted] = []

    def requests(count: int) -> list[Input]:
        nonlocal place
        chosen = [load.requests[(place + n) % len(load.requests)] for n in range(count)]
        place += count
        return [Admit(action_ref=ref, key=key) for ref, key in chosen]

    running += decide(state, requests(load.waiting), 0.0).granted
    done, spent, now = 0, 0.0, 0.0
    turns: list[tuple[float, float]] = []
    while spent < seconds:
        ended, running = running[:BATCH], running[BATCH:]
        inputs = [
            *requests(len(ended) if load.waiting else BATCH),
            *(
                Ended(
                    execution_id=each.id,
                    grant=each.grant,
                    status=Status.COMPLETED,
                    started_at=None if load.seconds is None else 0.0,
                    completed_at=load.seconds,
                )
                for each in ended
            ),
        ]
        now += 0.01
        began = time.process_time()
        out = decide(state, inputs, now)
        took = time.process_time() - began
        running += out.granted
        done, spent = done + len(ended), spent + took
        if ended:
            turns.append((took / len(ended), took))
    quiet = sorted(turns)[len(turns) // 10][0]
    return spent / done * 1e6, quiet * 1e6, max(took for _, took in turns) * 1e3


def memory_of(waiting: int, queues: int) -> tuple[float, float]:
    """Return bytes for each execution that waits, and microseconds to let it wait."""
    gc.collect()
    before = _resident_bytes()
    state = _system(Load(name="", definitions=_actions(1, 0), requests=()))
    action = state.actions["a0"]
    began = time.process_time()
    for number in range(waiting):
        enqueue(state, queue_for(action, str(number % queues)), 3, Waiting(number + 1, 0.0, inf))
    took = time.process_time() - began
    gc.collect()
    return (_resident_bytes() - before) / waiting, took / waiting * 1e6


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * 4096


def _in_a_child(function: Callable[[], None]) -> None:
    """Run in a process of its own: memory that was used before is not returned to the system."""
    child = os.fork()
    if not child:
        function()
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="processor time of each load")
    parser.add_argument("words", nargs="*", help="only loads whose name contains one of these")
    arguments = parser.parse_args()
    gc.freeze()
    for load in _loads():
        if arguments.words and not any(word in load.name for word in arguments.words):
            continue
        mean, quiet, slowest = measure(load, arguments.seconds)
        print(
            f"{load.name:34} {quiet:6.1f} us/execution {1e6 / quiet:9,.0f}/s   "
            f"mean {mean:6.1f} us   slowest turn {slowest:5.1f} ms",
            flush=True,
        )
    if arguments.words:
        return
    for queues in (1, 10_000, 100_000):

        def show(queues: int = queues) -> None:
            size, took = memory_of(_WAITING, queues)
            print(
                f"{_WAITING:,} wait in {queues:7,} queues  {size:6.1f} bytes each  {took:5.2f} us each",
                flush=True,
            )

        _in_a_child(show)


if __name__ == "__main__":
    main()
