"""`executor dead-letters list | show | replay | purge`, over the HTTP API."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from turnstile.common.command_line import EXIT_FAILED, command_line
from turnstile.executor.cli.arguments import bad_input, encode, piped_in
from turnstile.executor.cli.connection import Api, Json, with_api
from turnstile.executor.cli.output import (
    JsonOption,
    compact,
    instant,
    print_fields,
    print_json,
    print_line,
    print_table,
    warn,
)
from turnstile.executor.cli.pages import read_pages

app = command_line("Manage dead-lettered messages: list, show, replay and purge them.")

_HEADINGS: Final = ("ID", "DIED", "CODE", "MESSAGE", "BYTES", "ERROR")

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[ID...]", help="Ids, fingerprints or message ids.")
]
CodeOption = Annotated[str | None, typer.Option(metavar="CODE", help="All with this error code.")]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters.")]


@app.callback()
def group() -> None:
    """Manage dead-lettered messages: list, show, replay and purge them."""


@app.command("list")
@with_api
def list_letters(
    api: Api,
    code: CodeOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most letters shown.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next_cursor` of the list before.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, the oldest first."""
    items, next_cursor = read_pages(api, "/dead-letters", {"code": code}, limit=limit, cursor=cursor)
    if as_json:
        print_json({"items": items, "next_cursor": next_cursor})
        return
    print_table(_HEADINGS, map(_row, items), empty="no dead letters")
    if next_cursor is not None:
        warn(f"there are more: --limit {limit * 2}, or --cursor {next_cursor}")


@app.command()
@with_api
def show(api: Api, name: Annotated[str, typer.Argument(metavar="ID")], as_json: JsonOption = False) -> None:
    """Show a dead letter: why it died, its headers and its body."""
    letter = api.get(f"/dead-letters/{quote(name, safe='')}")
    if as_json:
        print_json(letter)
        return
    print_fields(_fields(letter))
    print_line("")
    print_line(letter["body"])


@app.command()
@with_api
def replay(
    api: Api,
    *,
    names: NamesArgument = None,
    code: CodeOption = None,
    every: AllOption = False,
    body: Annotated[
        str | None, typer.Option(metavar="FILE", help="Publish one message with this body; '-': stdin.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Publish dead letters again, once their cause is fixed.

    A dead letter is deleted once the broker has confirmed its message. A message that fails again becomes a
    new dead letter. Example: executor dead-letters replay 42 --body corrected.json
    """
    selection = _selection(names, code, every=every)
    if body is not None:
        if len(names or ()) != 1:
            raise bad_input("--body is for one dead letter: give one id")
        selection |= {"body": b64encode(_content(body)).decode(), "body_encoding": "base64"}
    _deal(api, "replay", selection, "Replayed", as_json=as_json)


@app.command()
@with_api
def purge(
    api: Api,
    names: NamesArgument = None,
    code: CodeOption = None,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters."""
    _deal(api, "purge", _selection(names, code, every=every), "Purged", as_json=as_json)


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


def _deal(api: Api, verb: str, selection: dict[str, Any], done: str, *, as_json: bool) -> None:
    total = _in_rounds(api, verb, selection)
    if as_json:
        print_json(total)
    else:
        print_line(f"{done} {total['done']} {'message' if total['done'] == 1 else 'messages'}")
        for letter in total["refused"]:
            warn(f"{letter['id']}: not replayed: {letter['reason']}")
        for name in total["missing"]:
            warn(f"{name}: not_found: no dead letter with this id")
        if total["left"]:
            warn(f"{total['left']} left; repeat the command")
    if total["refused"] or total["missing"] or total["left"]:
        raise typer.Exit(EXIT_FAILED)


def _in_rounds(api: Api, verb: str, selection: dict[str, Any]) -> dict[str, Any]:
    """Repeat until nothing is left of what was there at first; what fails again meanwhile is left alone."""
    answer = api.post(f"/dead-letters/{verb}", encode(selection))
    done, at_first = answer["done"], answer["done"] + answer["left"]
    while answer["left"] and answer["done"] and done < at_first:
        answer = api.post(
            f"/dead-letters/{verb}", encode({**selection, "limit": min(at_first - done, 10_000)})
        )
        done += answer["done"]
    return {
        "done": done,
        "refused": answer["refused"],
        "missing": answer["missing"],
        "left": max(at_first - done, 0),
    }


def _row(letter: Json) -> Sequence[object]:
    return (
        letter["id"],
        instant(letter["died_at"]),
        letter["code"],
        letter["type"] or letter["original_routing_key"],
        letter["body_bytes"],
        letter["error"],
    )


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
    cut = (
        ", only the beginning is stored" if letter["body_truncated"] else ", the beginning" if is_cut else ""
    )
    yield "body", f"{letter['body_bytes']} bytes as {letter['body_encoding']}{cut}"
