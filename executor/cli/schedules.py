"""`executor schedules ...`: when actions run by themselves, over the HTTP API."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from turnstile.common.cli import command_line
from turnstile.common.schedules import CATCH_UP_MAX
from turnstile.executor.cli.arguments import (
    DURATION,
    INSTANT,
    PRIORITY,
    REF,
    SCHEDULE_ARGUMENT,
    Kind,
    Null,
    encode,
    given,
    number_of,
    option,
    or_none,
    read_parameters,
)
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption, change_named
from turnstile.executor.cli.definition_commands import Definitions, dates, paused_cell
from turnstile.executor.cli.documents import ScheduleDeletionPlan
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    for_each,
    instant,
    limit_of,
    print_fields,
    print_table,
    show,
    shown,
    warn,
)

app = command_line("Manage schedules: when actions run by themselves, by cron expressions or intervals.")

_OR_NONE: Final = Kind("INSTANT|none", or_none(INSTANT.parser or str))
_NUMBER: Final = Kind("NUMBER", number_of("number", 1, CATCH_UP_MAX, like=f"from 1 to {CATCH_UP_MAX}"))


def _state(schedule: Json) -> str:
    return f"{_times(schedule)}, next {instant(schedule['next_at']) or 'never'}"


def _times(schedule: Json) -> str:
    if schedule["cron"] is None:
        return f"every {shown('every', schedule['every'])}"
    return f"{schedule['cron']} {schedule['timezone']}"


_SCHEDULES: Final = Definitions(app=app, noun="schedule", name=SCHEDULE_ARGUMENT, state=_state)


def _print_schedule(schedule: Json) -> None:
    print_fields(_fields(schedule))
    if schedule["problem"] is not None:
        warn(schedule["problem"])


def _fields(schedule: Json) -> Iterator[tuple[str, object]]:
    for name in (
        "name", "action_ref", "cron", "every", "timezone", "parameters", "concurrency_key", "priority",
        "timeout", "ttl", "overlap", "catch_up", "catch_up_max", "jitter", "start_at", "end_at", "paused",
    ):  # fmt: skip
        if schedule[name] is not None:
            yield name, shown(name, schedule[name])
    yield "next_at", instant(schedule["next_at"]) or "never"
    yield "last execution", schedule["last_execution_id"]
    for name in ("admitted", "skipped", "refused"):
        yield name, schedule[name]
    yield "missed_at", instant(schedule["missed_at"]) or None
    yield from dates(schedule)


_SCHEDULES.add_list(
    "List schedules by name, with their next occurrence.",
    empty="No schedules; create one with 'executor schedules put NAME --action REF --cron EXPRESSION'",
    columns={
        "SCHEDULE": "name",
        "ACTION": "action_ref",
        "TIMES": _times,
        "NEXT": lambda schedule: instant(schedule["next_at"]),
        "LAST EXECUTION": "last_execution_id",
        "PROBLEM": lambda schedule: schedule["problem"] or "",
        "PAUSED": paused_cell,
    },
)
_SCHEDULES.add_show(
    "get", "Show the definition of a schedule and what became of its occurrences.", _print_schedule
)


@app.command("put")
@with_api
def put_schedule(
    api: Api,
    name: Annotated[str, SCHEDULE_ARGUMENT],
    *,
    action: Annotated[str | None, option(REF, "The action that runs.")] = None,
    cron: Annotated[
        str | None, option("EXPRESSION", "Minute, hour, day of month, month, day of week: '0 6 * * MON-FRI'.")
    ] = None,
    every: Annotated[float | None, option(DURATION, "In place of --cron: an interval, like 15m.")] = None,
    timezone: Annotated[str | None, option("ZONE", "Time zone of --cron, like Europe/Berlin.")] = None,
    parameters: Annotated[
        str | None, option("JSON|-", "Parameters of each execution, as a JSON object; '-': from stdin.")
    ] = None,
    priority: Annotated[int | None, option(PRIORITY, "Priority of each execution.")] = None,
    overlap: Annotated[
        Literal["queue", "skip", "cancel_running"] | None,
        option(
            "queue|skip|cancel_running",
            "If the last execution has not ended: admit the next one, leave it out, or cancel the last one.",
        ),
    ] = None,
    catch_up: Annotated[
        Literal["none", "one", "all"] | None,
        option("none|one|all", "Which occurrences run that were missed in an outage of more than a minute."),
    ] = None,
    catch_up_max: Annotated[int | None, option(_NUMBER, "At most so many with --catch-up all.")] = None,
    jitter: Annotated[float | None, option(DURATION, "Spread occurrences over so long, like 5m.")] = None,
    start_at: Annotated[object, option(_OR_NONE, "No occurrence is before this instant.")] = None,
    end_at: Annotated[object, option(_OR_NONE, "No occurrence is after this instant.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a schedule, or change it with immediate effect.

    Options that are not given change nothing. Before you store one, 'executor schedules preview' shows its
    occurrences.
    Example: executor schedules put nightly-report --action reports.render --cron '0 6 * * MON-FRI' --timezone
    Europe/Berlin
    """
    fields = given(
        action_ref=action, cron=cron, every=every, timezone=timezone, priority=priority, overlap=overlap,
        catch_up=catch_up, catch_up_max=catch_up_max, jitter=jitter, start_at=start_at, end_at=end_at,
        parameters=None if parameters is None else read_parameters(parameters),
    )  # fmt: skip
    if (cron is None) != (every is None):
        fields |= given(**{"every" if every is None else "cron": Null.NULL})
    _SCHEDULES.change(api, name, fields, as_json=as_json)


@app.command("delete")
@with_api
def delete_schedules(
    api: Api,
    names: Annotated[list[str], SCHEDULE_ARGUMENT],
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete schedules; their executions continue.

    A worker whose code declares a deleted schedule creates it again when it connects: pause it instead. A
    terminal prompts for confirmation; without one, --yes is needed.
    """
    change_named(
        names,
        read=lambda name: ScheduleDeletionPlan(name=name, next_at=api.get(_SCHEDULES.path(name))["next_at"]),
        plan=lambda name, found: f"Would delete {name}, whose next occurrence is {found.next_at or 'never'}",
        asks="Delete the schedules",
        destroys="a delete removes definitions",
        change=lambda name: api.delete(_SCHEDULES.path(name)),
        changed=lambda name, _: f"Deleted {name}",
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


_SCHEDULES.add_switch("pause", "Pause schedules: no occurrence counts until they are resumed.")
_SCHEDULES.add_switch("resume", "Resume paused schedules.")


@app.command("run")
@with_api
def run_now(api: Api, names: Annotated[list[str], SCHEDULE_ARGUMENT], as_json: JsonOption = False) -> None:
    """Run schedules now, beside their occurrences, also while they are paused."""
    for_each(
        names,
        lambda name: api.post(f"{_SCHEDULES.path(name)}/run"),
        lambda name, accepted: f"{name}: execution {accepted['id']} is {accepted['status']}",
        as_json=as_json,
    )


_COUNT: Final = limit_of("occurrences", 100)
_AFTER: Final = option(INSTANT, "Occurrences after this instant; without it, after now.")


@app.command("next")
@with_api
def next_occurrences(
    api: Api,
    name: Annotated[str, SCHEDULE_ARGUMENT],
    limit: Annotated[int, _COUNT] = 10,
    after: Annotated[str | None, _AFTER] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the next occurrences of a schedule."""
    found = api.get(f"{_SCHEDULES.path(name)}/occurrences", {"count": limit, "after": after})
    show(found, _print_occurrences, as_json=as_json)


@app.command("preview")
@with_api
def preview(
    api: Api,
    *,
    cron: Annotated[str | None, option("EXPRESSION", "A cron expression.")] = None,
    every: Annotated[float | None, option(DURATION, "An interval, like 15m.")] = None,
    timezone: Annotated[str | None, option("ZONE", "Time zone of --cron, like Europe/Berlin.")] = None,
    limit: Annotated[int, _COUNT] = 10,
    after: Annotated[str | None, _AFTER] = None,
    as_json: JsonOption = False,
) -> None:
    """Show occurrences of a schedule that is not stored; nothing is changed.

    Example: executor schedules preview --cron '30 2 * * *' --timezone Europe/Berlin --after
    2026-10-24T00:00:00Z
    """
    body = encode(given(cron=cron, every=every, timezone=timezone))
    query = given(count=limit, after=after)
    show(api.post("/schedules/occurrences", body, query=query), _print_occurrences, as_json=as_json)


def _print_occurrences(found: Json) -> None:
    columns: Columns = {
        "SCHEDULED FOR": lambda each: instant(each["scheduled_for"]),
        "LOCAL": "local",
        "DUE": lambda each: instant(each["due_at"]),
    }
    print_table(columns, found["items"], empty="No further occurrence")


_SCHEDULES.add_changes("history", "List the changes of a schedule: what, when and by whom, newest first.")
