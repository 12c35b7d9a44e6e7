"""The verdict: what the history says about the promises, in figures and in sentences.

In: what was asked for, and the `History`. Out: a `Report` whose `broken` names every promise that was not
kept: P1 (limit), P2 (order), P3 and P5 (each once, none lost). Pure. Next: `page` prints it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from turnstile.common.domain.states import Status
from turnstile.executor.demo import figures
from turnstile.executor.demo.history import ExecutionHistory, History, QueueHistory
from turnstile.executor.demo.job import Task

_EXAMPLES_MAX: Final = 5
"""How many of many alike faults are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """The figures of one queue; seconds are None where nothing could be measured."""

    action_ref: str
    max_concurrent: int | None
    attempts: int
    most_held: int
    """Slots at one moment, from grant to end."""
    most_running: int
    """Attempts at one moment on the workers."""
    out_of_order: int
    wait_p50_seconds: float | None
    wait_p99_seconds: float | None
    hand_over_p50_seconds: float | None
    hand_over_p99_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is printed at the end."""

    queues: tuple[QueueReport, ...]
    submitted: int
    completed: int
    checked: int
    """Results that were compared with a recount."""
    elapsed_seconds: float
    broken: tuple[str, ...]
    """One sentence for each promise that was not kept; empty: all were."""

    @property
    def executions_per_second(self) -> float:
        """Completed executions by the time from the first arrival to the last end."""
        return self.completed / self.elapsed_seconds if self.elapsed_seconds else 0.0


def judge(tasks: Sequence[Task], history: History) -> Report:
    """Hold the history against what was asked for and what is promised."""
    executions = history.executions
    known = {task.number: task for task in tasks}
    ends = [e.completed_at for e in executions if e.completed_at is not None]
    elapsed = max(ends) - min(e.created_at for e in executions) if ends else None
    return Report(
        queues=tuple(_figures(queue) for queue in history.queues),
        submitted=len(tasks),
        completed=sum(e.status is Status.COMPLETED for e in executions),
        checked=sum(e.status is Status.COMPLETED and e.number in known for e in executions),
        elapsed_seconds=elapsed.total_seconds() if elapsed else 0.0,
        broken=(
            *(fault for queue in history.queues for fault in _limit_faults(queue)),
            *(fault for queue in history.queues for fault in _order_faults(queue)),
            *_arrival_faults(executions),
            *_loss_faults(tasks, executions),
            *_shortened(_end_faults(known, executions)),
        ),
    )


def _figures(queue: QueueHistory) -> QueueReport:
    waits = figures.waits(queue.attempts)
    hand_overs = figures.hand_overs(queue.attempts, queue.max_concurrent)
    return QueueReport(
        action_ref=queue.action_ref,
        max_concurrent=queue.max_concurrent,
        attempts=len(queue.attempts),
        most_held=figures.most_at_once(figures.held(queue.attempts)),
        most_running=figures.most_at_once(figures.running(queue.attempts)),
        out_of_order=len(figures.overtakings(queue.attempts)),
        wait_p50_seconds=figures.percentile(waits, 0.5),
        wait_p99_seconds=figures.percentile(waits, 0.99),
        hand_over_p50_seconds=figures.percentile(hand_overs, 0.5),
        hand_over_p99_seconds=figures.percentile(hand_overs, 0.99),
    )


def _limit_faults(queue: QueueHistory) -> Iterator[str]:
    most = figures.most_at_once(figures.held(queue.attempts))
    if queue.max_concurrent is not None and most > queue.max_concurrent:
        yield f"limit: {most} executions of {queue.action_ref} at once, allowed are {queue.max_concurrent}"


def _order_faults(queue: QueueHistory) -> Iterator[str]:
    found = figures.overtakings(queue.attempts)
    if found:
        yield (
            f"order: {len(found)} executions of {queue.action_ref} started ahead of earlier ones, "
            f"such as {found[0].execution_id} ahead of {found[0].overtaken_id}"
        )


def _arrival_faults(executions: Sequence[ExecutionHistory]) -> Iterator[str]:
    numbers = [e.number for e in executions if e.number is not None]
    wrong = [pair for pair in pairwise(numbers) if pair[0] > pair[1]]
    if wrong:
        yield (
            f"order: {len(wrong)} requests were taken in ahead of earlier ones, "
            f"such as request {wrong[0][0]} ahead of {wrong[0][1]}"
        )


def _loss_faults(tasks: Sequence[Task], executions: Sequence[ExecutionHistory]) -> Iterator[str]:
    recorded = Counter(e.number for e in executions)
    lost = [task.number for task in tasks if not recorded[task.number]]
    if lost:
        yield f"lost: {len(lost)} of {len(tasks)} requests are not in the record, such as request {lost[0]}"
    doubled = [number for number, times in recorded.items() if times > 1]
    if doubled:
        yield f"once: {len(doubled)} requests are in the record more than once, such as request {doubled[0]}"


def _end_faults(tasks: Mapping[int, Task], executions: Sequence[ExecutionHistory]) -> Iterator[str]:
    for execution in executions:
        name = f"execution {execution.execution_id} of {execution.action_ref}"
        if execution.status is not Status.COMPLETED:
            reason = f": {execution.error_message}" if execution.error_message else ""
            yield f"end: {name} is {execution.status}{reason}"
        elif not _is_right(execution, tasks):
            yield f"result: {name} says {execution.result}, which a recount does not confirm"
        elif execution.holds_slot:
            yield f"slot: {name} has ended and still holds its slot"


def _is_right(execution: ExecutionHistory, tasks: Mapping[int, Task]) -> bool:
    if execution.number is None or execution.number not in tasks:
        return True
    answer, result = tasks[execution.number].answer, execution.result
    return isinstance(result, dict) and answer.items() <= result.items()


def _shortened(faults: Iterator[str]) -> Iterator[str]:
    told = list(faults)
    yield from told[:_EXAMPLES_MAX]
    if len(told) > _EXAMPLES_MAX:
        yield f"... and {len(told) - _EXAMPLES_MAX} more executions"
