"""A queue manager with short words: each call is one turn, and the system is consistent after each."""

from dataclasses import replace
from typing import Any

from tests.proof.queue_manager.configurations import define
from tests.proof.queue_manager.recount import recount
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.decide import GRANTS_MAX, decide
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.definitions import Action, Pool, Resource, Use
from turnstile.executor.queue_manager.inputs import (
    Admit,
    Cancel,
    Ended,
    Input,
    Returned,
    Started,
    WorkerChanged,
    WorkerGone,
)
from turnstile.executor.queue_manager.state import Execution, State


class Scheduler:
    """Definitions and workers first, then what happens. `out` is what the last turn decided."""

    def __init__(self, *definitions: Action | Resource | Pool, workers: dict[str, int] | None = None) -> None:
        self.state = State()
        self.now = 0.0
        self.out = Decisions(now=0)
        for definition in sorted(definitions, key=lambda each: isinstance(each, Action)):
            self.define(definition)
        for name, slots in ({"w": 100} if workers is None else workers).items():
            self.worker(name, slots)

    def turn(self, *inputs: Input, grants_max: int = GRANTS_MAX) -> list[int]:
        """Return the ids that start."""
        self.out = decide(self.state, inputs, self.now, grants_max=grants_max)
        recount(self.state)
        return [each.id for each in self.out.granted]

    def define(self, definition: Action | Resource | Pool) -> list[int]:
        return self.turn(define(definition))

    def change(self, ref: str, **changes: Any) -> list[int]:
        return self.define(replace(self.state.actions[ref].definition, **changes))

    def change_resource(self, name: str, **changes: Any) -> list[int]:
        return self.define(replace(self.state.resources[name].definition, **changes))

    def worker(
        self, name: str, slots: int = 1, pools: str = "default", actions: str = "", **more: Any
    ) -> list[int]:
        return self.turn(
            WorkerChanged(
                worker_id=name, pools=frozenset(pools.split()), concurrency=slots,
                actions=frozenset(actions.split()) if actions else None, **more,
            )
        )  # fmt: skip

    def lose(self, name: str, **more: Any) -> list[int]:
        return self.turn(WorkerGone(worker_id=name, **more))

    def submit(self, ref: str, key: str = "", **more: Any) -> int:
        """Return the id of an accepted request."""
        self.turn(Admit(action_ref=ref, key=key, **more))
        return self.out.admitted[0].id

    def submit_all(self, *refs: str, **more: Any) -> list[int]:
        """Submit in one turn; each is an action, or action/key. Return the ids that start."""
        parts = [each.partition("/") for each in refs]
        return self.turn(*(Admit(action_ref=ref, key=key, **more) for ref, _, key in parts))

    def grant(self, execution_id: int) -> Grant:
        grant = self.state.executions[execution_id].grant
        assert grant is not None
        return grant

    def ended(self, execution_id: int, status: Status = Status.COMPLETED, **more: Any) -> Ended:
        return Ended(execution_id=execution_id, grant=self.grant(execution_id), status=status, **more)  # type: ignore[arg-type]

    def end(self, *execution_ids: int) -> list[int]:
        return self.turn(*map(self.ended, execution_ids))

    def end_after(self, seconds: float, *execution_ids: int) -> list[int]:
        """End executions that ran for so long, as their worker says."""
        at, until = self.now, self.now + seconds
        return self.turn(*(self.ended(each, started_at=at, completed_at=until) for each in execution_ids))

    def fail(self, execution_id: int, **more: Any) -> list[int]:
        return self.turn(self.ended(execution_id, Status.FAILED, is_retryable=True, **more))

    def give_back(self, execution_id: int, **more: Any) -> list[int]:
        return self.turn(Returned(execution_id=execution_id, grant=self.grant(execution_id), **more))

    def report_start(self, execution_id: int) -> None:
        self.turn(Started(execution_id=execution_id, grant=self.grant(execution_id), at=self.now))

    def cancel(self, execution_id: int, ref: str = "a", reason: str = "not needed", **more: Any) -> list[int]:
        return self.turn(Cancel(execution_id=execution_id, reason=reason, action_ref=ref, **more))

    def wait(self, seconds: float) -> list[int]:
        self.now += seconds
        return self.turn()

    def at(self, name: str) -> list[int]:
        """Return what is at a worker."""
        return sorted(self.state.workers[name].held)

    def running(self) -> list[int]:
        return sorted(e.id for e in self.state.executions.values() if e.grant is not None)

    def holding(self) -> list[int]:
        return sorted(e.id for action in self.state.actions.values() for e in action.holding)

    def execution(self, execution_id: int) -> Execution:
        return self.state.executions[execution_id]

    def outcomes(self) -> dict[int, Status]:
        return {each.id: each.status for each in self.out.finished}

    def drain(self, steps: int) -> list[str]:
        """End what was granted first, again and again; return the actions that start, in order."""
        started: list[str] = []
        for _ in range(steps):
            self.end(min(self.running(), key=self.grant))
            started += [each.queue.action.ref for each in self.out.granted]
        return started


def uses(*names: str) -> tuple[Use, ...]:
    return tuple(Use(resource=name) for name in names)


def two_resources(
    *others: Action, a: Any = None, x: Any = None, y: Any = None, workers: dict[str, int] | None = None
) -> Scheduler:
    """Return one in which the action `a` acquires the resources `x` and `y`, and `b` only `y`."""
    return Scheduler(
        Resource(**{"name": "x", "capacity": 1, **(x or {})}),
        Resource(**{"name": "y", "capacity": 1, **(y or {})}),
        Action(ref="a", uses=uses("x", "y"), **(a or {})),
        Action(ref="b", uses=uses("y")),
        *others,
        workers=workers,
    )


def two_pools(**resource: Any) -> Scheduler:
    """Return one in which `a` and `g` of the pool `gpu` share a unit of a resource; `p` needs none."""
    s = Scheduler(
        Resource(name="r", capacity=1, **resource),
        Action(ref="a", uses=uses("r")),
        Action(ref="p"),
        Action(ref="g", pool="gpu", uses=uses("r")),
        workers={"w": 1},
    )
    s.worker("v", 4, pools="gpu")
    return s
