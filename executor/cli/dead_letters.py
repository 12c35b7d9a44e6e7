"""`executor dead-letters list | show | replay | purge`, over the HTTP API."""

from base64 import b64encode
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import typer

from turnstile.common.cli import bad_input, command_line
from turnstile.executor.cli.arguments import argument, given, opened, option
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption
from turnstile.executor.cli.output import (
    CursorOption,
    JsonOption,
    Listing,
    compact,
    instant,
    limit_of,
    print_fields,
    print_line,
    show,
)
from turnstile.executor.cli.selections import Change, by_ids

_LIST: Final = Listing(
    path="/dead-letters",
    empty="No dead letters",
    columns={
        "ID": "id",
        "DIED": lambda letter: instant(letter["died_at"]),
        "CODE": "code",
        "SENDER": "app_id",
        "ERROR": "error",
    },
    cut="ERROR",
)
_WORDS: Final[dict[str, Any]] = {
    "noun": "message",
    "missing": "no dead letter with this id",
    "batch_max": 10_000,
}
_REPLAY: Final = Change(path="/dead-letters/replay", verb="replay", done="Replayed", **_WORDS)
_PURGE: Final = Change(path="/dead-letters/purge", verb="purge", done="Purged", **_WORDS)

app = command_line("Manage dead-lettered messages.")

NamesArgument = Annotated[list[str] | None, argument("ID", "Ids, fingerprints or message ids.")]
CodeOption = Annotated[str | None, option("CODE", "All dead letters with this error code.")]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters.")]


@app.command("list")
@with_api
def list_dead_letters(
    api: Api,
    *,
    code: CodeOption = None,
    order: Annotated[
        Literal["oldest", "newest"], option("oldest|newest", "Which dead letters come first.")
    ] = "oldest",
    limit: Annotated[int, limit_of("dead letters", 10_000)] = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, oldest or newest first."""
    _LIST.print_page(api, {"code": code, "order": order}, limit=limit, cursor=cursor, as_json=as_json)


@app.command("show")
@with_api
def show_dead_letter(
    api: Api,
    name: Annotated[str, argument("ID", "Id, fingerprint or message id.")],
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
        str | None, option("FILE", "Replay one message with the body from this file; '-': stdin.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Publish dead letters again, after their cause is fixed.

    A dead letter is deleted once the broker has confirmed its message. A message that fails again becomes a
    new dead letter. With --all or --code, a terminal prompts for confirmation; without a terminal, --yes is
    needed. Example: executor dead-letters replay 42 --body corrected.json
    """
    selections = _selections(names, code, every=every)
    if body is not None:
        if len(names or ()) != 1:
            raise bad_input("--body needs exactly one id")
        with opened(body) as file:
            selections[0] |= {"body": b64encode(file.read()).decode(), "body_encoding": "base64"}
    _REPLAY.run(
        api,
        selections,
        question="Replay: {}?",
        destroys=None if names else "a replay by --all or --code publishes many messages at once",
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


@app.command()
@with_api
def purge(
    api: Api,
    *,
    names: NamesArgument = None,
    code: CodeOption = None,
    every: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters permanently: their messages cannot be restored.

    A terminal prompts for confirmation; without one, --yes is needed. Examples: executor dead-letters purge
    42; executor dead-letters purge --code unknown_action --dry-run
    """
    _PURGE.run(
        api,
        _selections(names, code, every=every),
        question="Purge for good: {}?",
        destroys="a purge deletes messages for good",
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


def _selections(names: list[str] | None, code: str | None, *, every: bool) -> list[dict[str, Any]]:
    chosen = given(ids=names or None, code=code, all=every or None)
    if len(chosen) != 1:
        raise bad_input("give ids, or --code CODE, or --all")
    return by_ids(names) if names else [chosen]


def _print(letter: Json) -> None:
    print_fields(_fields(letter))
    print_line("")
    print_line(letter["body"])


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
