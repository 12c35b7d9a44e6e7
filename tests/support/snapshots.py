"""What a load must find again of a state of the queue manager."""

from typing import Any

from turnstile.executor.leader.loading import clocks_of, windows_of
from turnstile.executor.queue_manager.definitions import KeySettings
from turnstile.executor.queue_manager.state import State


def snapshot_of(state: State) -> dict[str, Any]:
    """Return what a load must find again, as plain values: two states with equal snapshots decide alike."""
    waiting = {
        (ref, key, priority): list(waiting.entries())
        for ref, action in state.actions.items()
        for key, queue in action.queues.items()
        for priority, waiting in queue.waiting.items()
    }
    return {
        "waiting": waiting,
        "executions": {
            each.id: (
                each.queue.action.ref, each.queue.key, each.priority, each.status, each.attempt,
                each.failures, each.reclaims, each.queued_at, each.expires_at, each.due_at,
                each.cancel_reason, each.grant,
                None if each.worker is None else each.worker.id, each.scheduled_at, each.started_at,
                None if each.worker is not None else each.base,
                tuple((gate.definition.name, gate.holders[each]) for gate in each.held_at),
                each.is_impatient,
                each.passages, each.timeout_seconds, each.cancel_requested_at,
            )
            for each in state.executions.values()
        },
        "definitions": (
            {ref: action.definition for ref, action in state.actions.items()},
            {name: gate.definition for name, gate in state.resources.items()},
            {
                (ref, key): queue.settings
                for ref, action in state.actions.items()
                for key, queue in action.queues.items()
                if queue.settings != KeySettings()
            },
        ),
        "totals": {
            **{ref: (a.enqueued, a.completed) for ref, a in state.actions.items() if a.enqueued},
            **state.retired,
        },
        "clocks": {
            (clock.name, priority, flow): tag
            for clock in clocks_of(state)
            for (priority, flow), tag in clock.finish.items()
            if tag > clock.virtual.get(priority, 0)
        },
        "virtual": {
            (clock.name, priority): tag
            for clock in clocks_of(state)
            for priority, tag in clock.virtual.items()
            if tag
        },
        "starts": {
            window.name: [at for at in window.instants if state.now < at + window.rate.per_seconds]
            for window in windows_of(state)
        },
        "workers": {
            worker.id: (frozenset(worker.pools), worker.actions, worker.concurrency, set(worker.held))
            for worker in state.workers.values()
        },
    }  # fmt: skip
