"""`executor dead-letters list | show | replay | purge`, over the HTTP API."""

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import typer

from turnstile.common.cli import command_line
from turnstile.executor.cli.arguments import bad_input, encode, piped_in
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.confirmation import YesOption, confirm_counted
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    compact,
    counted,
    instant,
    print_fields,
    print_line,
    show,
)
from turnstile.executor.cli.pagination import (
    CursorOption,
    limit_of,
    print_handled,
    print_page,
    print_planned,
    read_pages,
    repeat_until_done,
)

_COLUMNS: Final[Columns] = {
    "ID": "id",
    "DIED": lambda letter: instant(letter["died_at"]),
    "CODE": "code",
    "MESSAGE": lambda letter: letter["type"] or letter["original_routing_key"],
    "BYTES": "body_bytes",
    "ERROR": "error",
}
_BATCH_MAX: Final = 10_000
_MISSING: Final = "no dead letter with this id"

app = command_line("Manage dead-lettered messages.")

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Ids, fingerprints or message ids.")
]
CodeOption = Annotated[
    str | None, typer.Option(metavar="CODE", help="All dead letters with this error code.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters.")]


@app.command("list")
@with_api
def list_dead_letters(
    api: Api,
    *,
    code: CodeOption = None,
    order: Annotated[
        Literal["oldest", "newest"],
        typer.Option(metavar="oldest|newest", help="Which dead letters come first."),
    ] = "oldest",
    limit: Annotated[int, limit_of("dead letters", 10_000)] = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, oldest or newest first."""
    found = read_pages(api, "/dead-letters", {"code": code, "order": order}, limit=limit, cursor=cursor)
    print_page(found, _COLUMNS, empty="No dead letters", limit=limit, as_json=as_json)


@app.command("show")
@with_api
def show_dead_letter(
    api: Api,
    name: Annotated[str, typer.Argument(metavar="ID", help="Id, fingerprint or message id.")],
    as_json: JsonOption = False,
) -> None:
    """Show a dead letter: error, headers and body."""
    show(api.get(f"/dead-letters/{quote(name, safe='')}"), _print, as_json=as_json)


@app.command()
@with_api
def replay(
    api: Api,
    *,
    names: NamesArgument = None,
    code: CodeOption = None,
    every: AllOption = False,
    body: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Replay one message with the body from this file; '-': stdin."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show how many would be published; change nothing.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Publish dead letters again, after their cause is fixed.

    A dead letter is deleted once the broker has confirmed its message. A message that fails again becomes a
    new dead letter. With --all or --code, a terminal prompts for confirmation; without a terminal, --yes is
    needed. Example: executor dead-letters replay 42 --body corrected.json
    """
    selection = _selection(names, code, every=every)
    if body is not None:
        if len(names or ()) != 1:
            raise bad_input("--body needs exactly one id")
        selection |= {"body": b64encode(_content(body)).decode(), "body_encoding": "base64"}
    if dry_run:
        _print_plan(api, "replay", selection, as_json=as_json)
        return
    confirmed = None
    if not names:
        confirmed = confirm_counted(
            lambda: _matched(api, "replay", selection),
            lambda matched: f"Replay: {counted(matched, 'message')}?",
            yes=yes,
            destroys="a replay by --all or --code publishes many messages at once",
        )
    _handle(api, "replay", selection, "Replayed", confirmed=confirmed, as_json=as_json)


@app.command()
@with_api
def purge(
    api: Api,
    *,
    names: NamesArgument = None,
    code: CodeOption = None,
    every: AllOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show how many would be deleted; change nothing.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters permanently: their messages cannot be restored.

    A terminal prompts for confirmation; without one, --yes is needed. Examples: executor dead-letters purge
    42; executor dead-letters purge --code unknown_action --dry-run
    """
    selection = _selection(names, code, every=every)
    if dry_run:
        _print_plan(api, "purge", selection, as_json=as_json)
        return
    confirmed = confirm_counted(
        lambda: _matched(api, "purge", selection),
        lambda matched: f"Purge for good: {counted(matched, 'message')}?",
        yes=yes,
        destroys="a purge deletes messages for good",
    )
    # What is named stays named: what is missing of it is reported.
    bound = None if names else confirmed
    _handle(api, "purge", selection, "Purged", confirmed=bound, as_json=as_json)


def _print(letter: Json) -> None:
    print_fields(_fields(letter))
    print_line("")
    print_line(letter["body"])


def _content(file: str) -> bytes:
    try:
        return piped_in().read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise bad_input(f"{file}: {error.strerror}") from None


def _selection(names: list[str] | None, code: str | None, *, every: bool) -> dict[str, Any]:
    given: dict[str, Any] = {"ids": names or None, "code": code, "all": every or None}
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) != 1:
        raise bad_input("give ids, or --code CODE, or --all")
    return chosen


def _handle(
    api: Api, verb: str, selection: dict[str, Any], done: str, *, confirmed: int | None, as_json: bool
) -> None:
    total = repeat_until_done(
        api, f"/dead-letters/{verb}", selection, batch_max=_BATCH_MAX, confirmed=confirmed
    )
    print_handled(total, f"{done} {counted(total['done'], 'message')}", missing=_MISSING, as_json=as_json)


def _planned(api: Api, verb: str, selection: dict[str, Any]) -> Json:
    """Return the response of a dry run: `left` matching dead letters."""
    return api.post(f"/dead-letters/{verb}", encode({**selection, "dry_run": True}))


def _matched(api: Api, verb: str, selection: dict[str, Any]) -> int:
    return int(_planned(api, verb, selection)["left"])


def _print_plan(api: Api, verb: str, selection: dict[str, Any], *, as_json: bool) -> None:
    planned = _planned(api, verb, selection)
    # No dead letter is refused before it is tried.
    shown = {name: planned[name] for name in ("left", "missing")}
    summary = f"Would {verb} {counted(planned['left'], 'message')}"
    print_planned(shown, summary, missing=_MISSING, as_json=as_json)


def _fields(letter: Json) -> Iterator[tuple[str, object]]:
    for name in ("id", "fingerprint", "code", "error"):
        yield name, letter[name]
    yield "died", instant(letter["died_at"])
    yield "stored", instant(letter["stored_at"])
    yield "tries", letter["tries"] or None
    yield "message", letter["type"]
    yield "routing key", letter["original_routing_key"]
    yield "message id", letter["message_id"]
    yield "correlation id", letter["correlation_id"]
    yield "published", instant(letter["published_at"])
    yield "sender", letter["app_id"]
    yield "reply to", letter["reply_to"]
    yield "headers", compact(letter["headers"])
    is_cut = letter["body_encoding"] == "text" and len(letter["body"].encode()) < letter["body_bytes"]
    cut = ", truncated when stored" if letter["body_truncated"] else ", truncated here" if is_cut else ""
    yield "body", f"{letter['body_bytes']} bytes as {letter['body_encoding']}{cut}"
