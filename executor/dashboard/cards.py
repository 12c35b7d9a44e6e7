"""Decides what needs an operator's attention: a card for each fault, with the command that mends it. Pure.

In: what the leader says stops its actions, the state of the dashboard, and what does not work. Out: cards,
the worst first. `/attention`, `executor attention` and the dashboard's home show the same ones, and
docs/runbook.md has a section for each kind.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Final, Literal, TypeAlias, get_args
from urllib.parse import quote as url_quote

from pydantic import AwareDatetime, Field

from turnstile.common.domain.durations import format_duration
from turnstile.common.schemas import Schema
from turnstile.executor.dashboard.failures import WINDOW, Failures
from turnstile.executor.dashboard.state import DEAD_LETTERS_MAX, Attention
from turnstile.executor.definitions import RANK_MAX
from turnstile.executor.questions.protocol import ActionStop, IdleUnits, StopsOfActions, WorkerState

Severity: TypeAlias = Literal["critical", "warning", "notice"]
Kind: TypeAlias = Literal[
    "server", "no_leader", "no_worker", "never_starts", "failing_deployment", "failing", "not_ready",
    "paused", "starved_key", "idle_units", "lost_workers", "webhooks", "dead_letters", "full",
]  # fmt: skip
"""In the order of the cards of one severity."""
SubjectKind: TypeAlias = Literal["server", "action", "resource", "pool", "worker", "messages"]

FAILED_MIN: Final = 3
"""Fewer failures are no card."""
FAILING_SHARE: Final = 0.1
BROKEN_SHARE: Final = 0.5
IDLE_SHARE: Final = 0.5
DEPLOYED: Final = timedelta(minutes=30)
"""A worker that started within this time may be why its actions fail."""
_STOP_SEVERITIES: Final[Mapping[Kind, Severity]] = {
    "no_worker": "critical", "never_starts": "critical", "paused": "warning",
}  # fmt: skip
_NAMES_MAX: Final = 3
_SEVERITIES: Final[Sequence[Severity]] = get_args(Severity)
_KINDS: Final[Sequence[Kind]] = get_args(Kind)


class Card(Schema):
    """Something that needs attention."""

    kind: Kind = Field(description="The section of docs/runbook.md that explains it.")
    severity: Severity = Field(
        description="critical: work fails or does not start until it is mended; warning: part of it; notice: "
        "a bound that was set is reached, and work waits for it."
    )
    subject_kind: SubjectKind
    subject: str = Field(description="The name of what it is about.", examples=["reports.render"])
    action_ref: str | None = Field(default=None, description="The action that it is about; null: none.")
    title: str = Field(examples=["reports.render is paused: 2 executions wait"])
    detail: str
    since: AwareDatetime | None = Field(description="Null: unknown.")
    command: str = Field(
        description="What mends it, or shows more.", examples=["executor actions resume reports.render"]
    )
    link: str = Field(description="Its page of the dashboard.", examples=["#/queues/reports.render"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known at one instant."""

    now: datetime
    waited: timedelta
    """What waits for a bound is named after this time."""
    troubles: Mapping[str, str]
    """What does not work, and why, by server; a leader that does not answer is `leader`."""
    stops: StopsOfActions
    workers: Sequence[WorkerState]
    failures: Mapping[str, Failures]
    pools: Mapping[str, str]
    """Of the actions that have failures."""
    attention: Attention


def cards(facts: Facts) -> list[Card]:
    """Return a card for each fault, the worst first."""
    found = [
        *_servers(facts), *_stopped(facts), *_idle(facts), *_failing(facts), *_not_ready(facts),
        *_left(facts),
    ]  # fmt: skip
    found.sort(key=lambda each: (_SEVERITIES.index(each.severity), _KINDS.index(each.kind), each.subject))
    return found


def _servers(facts: Facts) -> Iterator[Card]:
    for part, why in facts.troubles.items():
        is_leader = part == "leader"
        yield Card(
            kind="no_leader" if is_leader else "server",
            severity="critical",
            subject_kind="server",
            subject=part,
            title="No executor leads" if is_leader else f"{part} does not work",
            detail=f"{why}. Nothing is admitted or started; running executions continue."
            if is_leader
            else f"{why}.",
            since=None,
            command="executor doctor",
            link="#/",
        )


# What stops actions.


def _stopped(facts: Facts) -> Iterator[Card]:
    groups: dict[tuple[Kind, tuple[SubjectKind, str]], list[ActionStop]] = defaultdict(list)
    for stop in facts.stops.actions:
        kind, subject = _kind_of(stop), _subject_of(stop)
        if kind in ("full", "no_worker") and not _is_long(facts, stop.oldest_enqueued_at, kind):
            continue
        if stop.starved is not None and _is_long(facts, stop.starved.oldest_enqueued_at, kind):
            yield _starved(stop)
        else:
            groups[kind, subject].append(stop)
    for (kind, (subject_kind, name)), stops in groups.items():
        yield _stop_card(kind, subject_kind, name, stops)


def _is_long(facts: Facts, at: float, kind: Kind) -> bool:
    """Return whether it lasts: a worker that is being replaced is no fault."""
    least = min(facts.waited, timedelta(seconds=10)) if kind == "no_worker" else facts.waited
    return facts.now - _instant(at) >= least


def _kind_of(stop: ActionStop) -> Kind:
    if stop.closed in ("capacity_zero", "capacity_too_low"):
        return "never_starts"
    if stop.reason == "paused" or stop.closed == "paused":
        return "paused"
    return "no_worker" if stop.reason == "no_worker" else "full"


def _subject_of(stop: ActionStop) -> tuple[SubjectKind, str]:
    """Return what is the same for all actions that stop there."""
    if stop.closed == "capacity_too_low":
        return "action", stop.action_ref
    if stop.resource:
        return "resource", stop.resource
    if stop.reason in ("pool", "no_worker"):
        return "pool", stop.pool
    return "action", stop.action_ref


def _stop_card(kind: Kind, subject_kind: SubjectKind, subject: str, stops: Sequence[ActionStop]) -> Card:
    first, waiting = stops[0], sum(each.waiting for each in stops)
    names = _names([each.action_ref for each in stops])
    wait = f"{_executions(waiting)} of {names} wait{'s' if waiting == 1 else ''}"
    title, detail, command = _words(kind, subject_kind, subject, first)
    return Card(
        kind=kind,
        severity=_STOP_SEVERITIES.get(kind, "notice"),
        subject_kind=subject_kind,
        subject=subject,
        action_ref=first.action_ref if len(stops) == 1 else None,
        title=title if subject_kind == "action" else title[0].upper() + title[1:],
        detail=f"{wait}. {detail}",
        since=_instant(min(each.oldest_enqueued_at for each in stops)),
        command=command,
        link=_link(subject_kind, subject),
    )


def _words(kind: Kind, subject_kind: SubjectKind, subject: str, stop: ActionStop) -> tuple[str, str, str]:
    """Return title, detail and command."""
    name = quote(subject)
    of = subject if subject_kind == "action" else f"{subject_kind} {subject}"
    change = f"executor resources put {name} --capacity {max(stop.units, 1)}"
    if subject_kind == "action":
        change = f"executor actions limit {name} 1"
    if kind == "paused":
        return (
            f"{of} is paused",
            "None of it starts until it is resumed.",
            (f"executor {subject_kind}s resume {name}"),
        )
    if kind == "no_worker":
        return (
            f"No worker takes the work of {of}",
            "Start a worker that serves the pool and has the code of these actions.",
            f"TURNSTILE_WORKER_POOLS={name} worker serve --actions MODULE",
        )
    if kind == "never_starts":
        if stop.closed == "capacity_too_low":
            more = f"executor resources put {quote(stop.resource)} --capacity {stop.units}"
            return (
                f"{of} needs more than {stop.resource} has",
                f"Each needs {stop.units} units, and the capacity is {stop.capacity}.",
                more,
            )
        return f"{of} has a limit of 0", "Nothing of it starts until the limit is raised.", change
    return _bound_words(stop, of, name)


def _bound_words(stop: ActionStop, of: str, name: str) -> tuple[str, str, str]:
    resource_option = f"executor resources put {quote(stop.resource)}"
    match stop.reason:
        case "rate":
            per = format_duration(stop.per_seconds)
            more = f"{resource_option} --rate {2 * stop.capacity}/{per}"
            return (
                f"The rate of {of} is used up",
                f"{_counted(stop.capacity, 'start')} per {per} may happen, and more arrive.",
                more if stop.resource else f"executor actions show {name}",
            )
        case "total":
            return (
                f"The total of {of} is used up",
                f"{stop.held} of {stop.capacity} slots are in use over all keys.",
                f"executor queue list {name}",
            )
        case "resource":
            return (
                f"{of} is full",
                f"{stop.held} of {stop.capacity} units are held, and one execution needs {stop.units}.",
                f"executor resources queue {name}",
            )
        case _:
            return (
                f"All worker slots of {of} are in use",
                f"{stop.held} of {stop.capacity} are. More workers, or more concurrency, start more at once.",
                f"executor pools queue {name}",
            )


def _starved(stop: ActionStop) -> Card:
    starved, ref = stop.starved, stop.action_ref
    assert starved is not None, "the caller has looked"
    return Card(
        kind="starved_key",
        severity="warning",
        subject_kind="action",
        subject=ref,
        action_ref=ref,
        title=f"Key {starved.key} of {ref} gets no slot",
        detail=f"{_executions(starved.waiting)} of the key wait{'s' if starved.waiting == 1 else ''} while "
        f"other keys hold all {stop.capacity} slots of the total, key {starved.holder} "
        f"{starved.holder_slots} of them. With order: fair the keys take turns; its own limit bounds a key.",
        since=_instant(starved.oldest_enqueued_at),
        command=f"executor actions keys set {quote(ref)} {quote(starved.holder)} "
        f"--max-concurrent {max(starved.holder_slots - 1, 1)}",
        link=f"{_link('action', ref)}?key={url_quote(starved.key, safe='')}",
    )


def _idle(facts: Facts) -> Iterator[Card]:
    for idle in facts.stops.idle:
        is_rank = idle.reason == "resource" and idle.later
        is_much = idle.held_waiting > IDLE_SHARE * idle.capacity
        if is_rank and is_much and facts.now - _instant(idle.since) >= facts.waited:
            yield _idle_card(idle)


def _idle_card(idle: IdleUnits) -> Card:
    # Without a rank a resource comes last; 1 is the first.
    first, last = quote(idle.later), quote(idle.resource)
    ranked = f"{first} --rank {1 if idle.rank > RANK_MAX else idle.rank - 1}"
    return Card(
        kind="idle_units",
        severity="warning",
        subject_kind="resource",
        subject=idle.resource,
        title=f"{idle.resource} is held by executions that wait for {idle.later}",
        detail=f"{idle.held_waiting} of {idle.capacity} units are held by executions that do not run. "
        f"{idle.later} is scarcer: with the lower rank it is acquired first.",
        since=_instant(idle.since),
        command=f"executor resources put {ranked if idle.rank > 1 else f'{last} --rank none'}",
        link=_link("resource", idle.later),
    )


# What fails.


def _failing(facts: Facts) -> Iterator[Card]:
    for ref, failures in facts.failures.items():
        share = failures.share or 0.0
        if failures.failed < FAILED_MIN or share < FAILING_SHARE or failures.last is None:
            continue
        last = failures.last
        error = ": ".join(each for each in (last.type, last.message) if each) or last.status
        lately = format_duration(WINDOW.total_seconds())
        newest = _newest_of(facts, ref) if share >= BROKEN_SHARE else None
        title = f"{failures.failed} of {_executions(failures.ended)} of {ref} failed"
        if newest is not None:
            started = format_duration(round((facts.now - _instant(newest.registered_at)).total_seconds()))
            title = f"{ref} fails since a deployment: {failures.failed} of {failures.ended} failed"
            error = f"{error}. Worker {newest.name} started {started} ago"
        yield Card(
            kind="failing" if newest is None else "failing_deployment",
            severity="critical" if share >= BROKEN_SHARE else "warning",
            subject_kind="action",
            subject=ref,
            action_ref=ref,
            title=title,
            detail=f"In the last {lately}. Latest, #{last.execution_id}: {error}.",
            since=failures.since,
            command=f"executor get {last.execution_id}",
            link=f"#/executions?action_ref={url_quote(ref, safe='')}&status=failed,timeout,abandoned",
        )


def _newest_of(facts: Facts, ref: str) -> WorkerState | None:
    """Return the worker of an action that started last, if it started lately."""
    of_pool = (each for each in facts.workers if facts.pools.get(ref) in each.pools)
    serving = [each for each in of_pool if each.actions is None or ref in each.actions]
    newest = max(serving, key=lambda each: each.registered_at, default=None)
    if newest is None or facts.now - _instant(newest.registered_at) > DEPLOYED:
        return None
    return newest


def _not_ready(facts: Facts) -> Iterator[Card]:
    for worker in facts.workers:
        if worker.not_ready is not None and not worker.is_lost:
            yield Card(
                kind="not_ready",
                severity="warning",
                subject_kind="worker",
                subject=worker.name,
                title=f"Worker {worker.name} is not ready",
                detail=f"It takes nothing: {worker.not_ready}",
                since=_instant(worker.registered_at),
                command=f"executor workers show {worker.worker_id}",
                link=f"#/workers/{url_quote(worker.worker_id, safe='')}",
            )


def _left(facts: Facts) -> Iterator[Card]:
    """Yield what was left behind: lost workers, dead letters, failed webhooks."""
    found = facts.attention
    if found.lost_workers:
        yield Card(
            kind="lost_workers", severity="warning", subject_kind="worker", subject="lost workers",
            title=f"{_counted(found.lost_workers, 'worker')} lost in the last 24 hours",
            detail="The work of a lost worker starts again, or is abandoned; the worker's page shows it. The "
            "card ends once each loss is acknowledged: executor workers acknowledge ID.",
            since=None, command="executor workers list --state lost", link="#/workers?state=lost",
        )  # fmt: skip
    if found.dead_letters:
        shown = "More than 1000" if found.dead_letters >= DEAD_LETTERS_MAX else str(found.dead_letters)
        yield Card(
            kind="dead_letters", severity="warning", subject_kind="messages", subject="dead letters",
            title=f"{shown} dead letter{'' if found.dead_letters == 1 else 's'}",
            detail="Messages that could not be processed are kept. Correct the sender, then replay them.",
            since=found.oldest_dead_letter_at, command="executor dead-letters list", link="#/dead-letters",
        )  # fmt: skip
    if found.webhooks:
        origin, error = found.webhook_origin or "a receiver", found.webhook_error or "no answer"
        yield Card(
            kind="webhooks", severity="warning", subject_kind="messages", subject=origin,
            title=f"{_counted(found.webhooks, 'webhook')} not delivered",
            detail=f"The latest is for {origin}: {error}. Mend the receiver, then replay what has failed.",
            since=found.webhook_since, command="executor webhooks replay --all",
            link="#/webhooks?state=failed&state=pending",
        )  # fmt: skip


# Words.


def _instant(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _link(subject_kind: SubjectKind, subject: str) -> str:
    pages = {"action": "queues", "resource": "resources", "pool": "pools"}
    return f"#/{pages[subject_kind]}/{url_quote(subject, safe='')}"


def _names(refs: Sequence[str]) -> str:
    more = len(refs) - _NAMES_MAX
    return ", ".join(refs[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _executions(number: int) -> str:
    return _counted(number, "execution")


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
