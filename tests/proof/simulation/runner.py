"""What workers run: scripted actions, and the physical record of every start and stop.

The record is a witness of its own: it knows processes and true instants, and nothing of leases, grants or
tables.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.proof.simulation.loop import SimulatedLoop
from tests.proof.simulation.processes import Process, State
from turnstile.common.worker_protocol import Offer
from turnstile.stress.recording import NEVER, RunEnd
from turnstile.worker.core.outcomes import Completed, Failed, Failure
from turnstile.worker.core.ports import NotStarted
from turnstile.worker.core.ports import RunEnd as Ended

NS: Final = 1_000_000_000
_PARAMETERS: Final = b'{"number": %d}'
_NUMBER_AT: Final = len(b'{"number": ')
_KILLED: Final = Failed(failure=Failure(type="Killed", message="killed"), retryable=False)


@dataclass(frozen=True, slots=True)
class Step:
    """What one attempt of a script does."""

    kind: str
    """`ok`, `fail`, `retry`, `refuse` (it cannot start), `hang` (it ends only when it is asked to, or
    killed), `deaf` (only when it is killed) or `unstorable` (its result cannot be stored)."""
    seconds: float
    in_child: bool = True
    """It runs in a child process, which goes on while its worker is paused."""


def parameters_of(number: int) -> bytes:
    """Return the parameters of a request."""
    return _PARAMETERS % number


def number_of(parameters: bytes) -> int:
    """Return the number of the request with these parameters."""
    return int(parameters[_NUMBER_AT:-1])


class RunRecord:
    """One physical run."""

    __slots__ = ("attempt", "end", "execution_id", "number", "process", "started_at", "stopped_at", "worker")

    def __init__(self, number: int, offer: Offer, process: int, worker: str, started_at: int) -> None:
        self.number = number
        self.execution_id = offer.execution_id
        self.attempt = offer.attempt
        self.process = process
        self.worker = worker
        self.started_at = started_at
        self.stopped_at = NEVER
        self.end = RunEnd.UNKNOWN


class Witness:
    """All physical runs."""

    def __init__(self, loop: SimulatedLoop, random: Random, scripts: dict[int, tuple[Step, ...]]) -> None:
        self.loop = loop
        self.random = random
        self.scripts = scripts
        self.records: list[RunRecord] = []
        self.running = 0
        self.on_start: Callable[[Process, Offer], Callable[[bool], None]] = lambda *_: lambda _: None
        """Called with each start; what it returns is called with whether the run has started, at its end."""
        self._processes: dict[Process, int] = {}

    def number_of(self, process: Process) -> int:
        return self._processes.setdefault(process, len(self._processes))


class SimulatedRun:
    """One run, as a port of the worker."""

    def __init__(
        self,
        witness: Witness,
        process: Process,
        record: RunRecord | None,
        step: Step,
        *,
        ended: Callable[[Ended], None],
        noted: Callable[[bool], None],
    ) -> None:
        self._witness = witness
        self._process = process
        self._record = record
        self._step = step
        loop = witness.loop
        self._ended, self._noted = ended, noted
        self._future: asyncio.Future[Ended] = loop.create_future()
        self._future.add_done_callback(self._tell)
        if record is None:
            loop.after(0.001, self._answer, NotStarted(reason="no code"))
        elif step.kind not in ("hang", "deaf"):
            loop.after(step.seconds, self._end_by_itself)

    def _tell(self, future: "asyncio.Future[Ended]") -> None:
        self._noted(not isinstance(future.result(), NotStarted))
        # A worker that has a bug goes on, as its event loop does: the judge sees what comes of it.
        with suppress(KeyError):
            self._ended(future.result())

    def ask_to_stop(self, reason: str) -> None:
        self._process.check()
        if self._step.kind != "deaf":
            self._witness.loop.after(
                0.02 * self._witness.random.random(), self._stop, RunEnd.STOPPED, _KILLED
            )

    def kill(self) -> None:
        self._process.check()
        self._witness.loop.after(0.02 * self._witness.random.random(), self._stop, RunEnd.KILLED, _KILLED)

    def die(self) -> None:
        """Its worker was killed, and it dies with it."""
        self._witness.loop.after(0.02 * self._witness.random.random(), self._stop, RunEnd.KILLED, _KILLED)

    def _end_by_itself(self) -> None:
        step = self._step
        if self._process.state is State.PAUSED and not step.in_child:
            self._witness.loop.after(0.05, self._end_by_itself)
            return
        result: Ended
        match step.kind:
            case "fail":
                result = Failed(failure=Failure(type="Wrong", message="as scripted"), retryable=False)
            case "retry":
                result = Failed(failure=Failure(type="Busy", message="as scripted"), retryable=True)
            case "unstorable":
                result = Completed(result_json='"\\u0000"')
            case _:
                result = Completed(result_json="null")
        self._stop(RunEnd.STOPPED, result)

    def _stop(self, end: RunEnd, result: Ended) -> None:
        record = self._record
        if record is None or record.stopped_at != NEVER:
            return
        record.stopped_at = round(self._witness.loop.now * NS)
        record.end = end
        self._witness.running -= 1
        self._answer(result)

    def _answer(self, result: Ended) -> None:
        self._process.answer(self._future, result)


class SimulatedRunner:
    """Starts scripted runs, as a port of the worker."""

    def __init__(self, witness: Witness, process: Process) -> None:
        self._witness = witness
        self._process = process
        self._runs: list[SimulatedRun] = []
        self._runs_max = 64
        process.at_death.append(self._died)

    def _died(self) -> None:
        for run in self._runs:
            run.die()

    def start(self, offer: Offer, ended: Callable[[Ended], None]) -> SimulatedRun:
        self._process.check()
        witness = self._witness
        number = number_of(offer.parameters)
        script = witness.scripts[number]
        step = script[min(offer.attempt, len(script)) - 1]
        record: RunRecord | None = None
        if step.kind != "refuse":
            process = witness.number_of(self._process)
            record = RunRecord(number, offer, process, self._process.name, round(witness.loop.now * NS))
            witness.records.append(record)
            witness.running += 1
        noted = witness.on_start(self._process, offer)
        run = SimulatedRun(witness, self._process, record, step, ended=ended, noted=noted)
        self._runs.append(run)
        if len(self._runs) > self._runs_max:
            self._runs = [
                each for each in self._runs if each._record is not None and each._record.stopped_at == NEVER
            ]
            self._runs_max = 2 * len(self._runs) + 64
        return run
