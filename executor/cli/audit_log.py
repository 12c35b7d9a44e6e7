"""`executor audit-log`, over the HTTP API."""

from typing import Annotated, Final

import typer

from turnstile.executor.cli.arguments import instant_text
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.output import Columns, JsonOption, instant
from turnstile.executor.cli.pagination import CursorOption, limit_of, print_page, read_pages
from turnstile.executor.cli.values import changed_fields


def _fields(row: Json) -> str:
    # Of a created or deleted definition every field would be shown.
    is_whole = row["subject_kind"] in ("action", "resource", "pool") and row["verb"] in ("created", "deleted")
    return "" if is_whole else changed_fields(row["before"], row["after"])


_COLUMNS: Final[Columns] = {
    "WHEN": lambda row: instant(row["recorded_at"]),
    "USER": lambda row: row["user"] or "-",
    "FROM": lambda row: " ".join(filter(None, (row["channel"], row["address"]))) or "-",
    "WHAT": "verb",
    "SUBJECT": lambda row: f"{row['subject_kind'].replace('_', ' ')} {row['subject']}".rstrip(),
    "FIELDS": _fields,
}
_SUBJECTS: Final = (
    "action, resource, pool, execution, executions, worker, dead_letter, webhook, token, token_file, "
    "account, database"
)


@with_api
def audit_log(
    api: Api,
    *,
    subject: Annotated[
        str | None,
        typer.Option(
            metavar="KIND[:NAME]",
            help=f"Only this subject, like action:reports.render, or only this kind. Kinds: {_SUBJECTS}.",
        ),
    ] = None,
    action: Annotated[
        str | None, typer.Option(metavar="REF", help="Only this action, its executions and their webhooks.")
    ] = None,
    verb: Annotated[
        str | None, typer.Option(metavar="VERB", help="Only this change, like cancelled or paused.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only changes with the token of this name.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            parser=instant_text,
            metavar="INSTANT",
            help="Changes at this instant or later, like 2026-11-21T07:30:00Z.",
        ),
    ] = None,
    before: Annotated[
        str | None, typer.Option(parser=instant_text, metavar="INSTANT", help="Changes before this instant.")
    ] = None,
    limit: Annotated[int, limit_of("rows", 100_000)] = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what operators did: who, when and what.

    Newest first. Each row is stored with its change: cancels, retries, drains, replays, purges, and every
    change of an action, a resource, a pool or a token.
    """
    kind, _, name = (subject or "").partition(":")
    query = {
        "subject_kind": kind or None,
        "subject": name or None,
        "action_ref": action,
        "verb": verb,
        "user": user,
        "recorded_after": after,
        "recorded_before": before,
    }
    found = read_pages(api, "/audit-log", query, limit=limit, cursor=cursor)
    print_page(found, _COLUMNS, empty="No operator has changed anything yet", limit=limit, as_json=as_json)
