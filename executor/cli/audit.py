"""`executor audit` and `executor audit-log`, over the HTTP API: do all rows agree, and who changed what."""

from typing import Annotated, Final

import typer

from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.arguments import INSTANT, given, option
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.output import (
    Columns,
    CursorOption,
    JsonOption,
    Listing,
    changed_fields,
    counted,
    instant,
    limit_of,
    print_line,
    print_more,
    print_table,
    show,
)

_COLUMNS: Final = {"CHECK": "name", "ROWS": "rows", "VIOLATIONS": "faults", "INVARIANT": "says"}
_EXAMPLE_COLUMNS: Final[Columns] = {
    "CHECK": "check",
    "ID": lambda example: f"{example['subject']} {example['id']}",
    "EXPECTED": "expected",
    "FOUND": "found",
}
_SUBJECTS: Final = (
    "action, resource, pool, schedule, execution, executions, worker, dead_letter, webhook, token, "
    "token_file, account, database"
)


@with_api
def audit(
    api: Api,
    live: Annotated[
        bool, typer.Option("--live", help="Skip the history: the cost depends only on live executions.")
    ] = False,
    examples: Annotated[
        int, option("NUMBER", "Maximum number of examples per violated check.", min=0, max=100)
    ] = 10,
    as_json: JsonOption = False,
) -> None:
    """Check that all rows agree, and that the leader remembers what they say.

    Compares in one snapshot what is kept of executions with their records, and finds executions and commands
    that are overdue. The leader compares its memory with the rows once a minute. Exit code 0: no violations;
    1: violations.
    """
    found = api.get("/audit", {"record": "false" if live else "true", "examples": examples})
    show(found, _print, as_json=as_json)
    if not found["clean"]:
        raise typer.Exit(ExitCode.FAILED)


def _print(found: Json) -> None:
    print_table(_COLUMNS, found["checks"], empty="No checks")
    examples = [
        Json({**example, "check": check["name"], "subject": check["subject"]})
        for check in found["checks"]
        for example in check["examples"]
    ]
    print_more(_EXAMPLE_COLUMNS, examples)
    count = sum(check["faults"] for check in found["checks"])
    print_line("")
    print_line(f"{instant(found['checked_at'])}: {counted(count, 'violation') if count else 'no violations'}")


@with_api
def audit_log(
    api: Api,
    *,
    subject: Annotated[
        str | None,
        option(
            "KIND[:NAME]",
            f"Only this subject, like action:reports.render, or only this kind. Kinds: {_SUBJECTS}.",
        ),
    ] = None,
    action: Annotated[
        str | None, option("REF", "Only this action, its executions and their webhooks.")
    ] = None,
    verb: Annotated[str | None, option("VERB", "Only this change, like cancelled or paused.")] = None,
    user: Annotated[str | None, option("NAME", "Only changes with the token of this name.")] = None,
    after: Annotated[
        str | None, option(INSTANT, "Changes at this instant or later, like 2026-11-21T07:30:00Z.")
    ] = None,
    before: Annotated[str | None, option(INSTANT, "Changes before this instant.")] = None,
    limit: Annotated[int, limit_of("rows", 100_000)] = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what operators did: who, when and what.

    Newest first. Each row is stored with its change: cancels, retries, drains, replays, purges, and every
    change of an action, a resource, a pool or a token.
    """
    kind, _, name = (subject or "").partition(":")
    query = given(
        subject_kind=kind or None,
        subject=name or None,
        action_ref=action,
        verb=verb,
        user=user,
        recorded_after=after,
        recorded_before=before,
    )
    _LOG.print_page(api, query, limit=limit, cursor=cursor, as_json=as_json)


def _fields(row: Json) -> str:
    # Of a created or deleted definition every field would be shown.
    is_whole = row["subject_kind"] in ("action", "resource", "pool", "schedule") and row["verb"] in (
        "created",
        "deleted",
    )
    return "" if is_whole else changed_fields(row["before"], row["after"])


_LOG: Final = Listing(
    path="/audit-log",
    empty="No operator has changed anything yet",
    columns={
        "WHEN": lambda row: instant(row["recorded_at"]),
        "USER": lambda row: row["user"] or "-",
        "FROM": lambda row: " ".join(filter(None, (row["channel"], row["address"]))) or "-",
        "WHAT": "verb",
        "SUBJECT": lambda row: f"{row['subject_kind'].replace('_', ' ')} {row['subject']}".rstrip(),
        "FIELDS": _fields,
    },
)
