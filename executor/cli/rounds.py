"""Goes through all executions that a filter names, a bounded number in each call (`cancel`, `retry`).

In: a verb and a filter. Out: what became of them, in figures for people and item by item in JSON. On a
terminal it says how many are meant before it changes any.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import typer

from turnstile.common.command_line import EXIT_FAILED
from turnstile.executor.cli.arguments import bad_input, can_be_asked, encode
from turnstile.executor.cli.connection import Api, ApiUnreachable, Json
from turnstile.executor.cli.output import print_json, print_line, progress, warn

_ROUND_MAX: Final = 1000
_NAMED_MAX: Final = 10
_WARNED_MAX: Final = 20
_DONE: Final = {"cancel": "ended or asked to stop", "retry": "asked for again"}

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show which ones are meant, change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also on a terminal.")]
RoundsLimitOption = Annotated[
    int | None, typer.Option(min=1, help="Most executions that a filter means; all, unless given.")
]


def for_all(
    api: Api,
    verb: str,
    wanted: dict[str, Any],
    *,
    said: dict[str, Any] | None = None,
    key: str | None = None,
    dry_run: bool,
    limit: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Do it, or show what would be done."""
    body = {"filter": wanted, **(said or {})}
    if not (dry_run or yes) and can_be_asked() and sys.stdout.isatty():
        _ask_first(verb, _summed(_rounds(api, verb, {**body, "dry_run": True}, key=key, limit=limit)))
    total = _summed(_rounds(api, verb, {**body, "dry_run": dry_run}, key=key, limit=limit))
    if as_json:
        print_json(total)
    else:
        _print(verb, total)
    if any("problem" in item and item["problem"] is not None for item in total["items"]):
        raise typer.Exit(EXIT_FAILED)


def _rounds(
    api: Api, verb: str, body: dict[str, Any], *, key: str | None, limit: int | None
) -> Iterator[Json]:
    cursor, matched, changed = None, 0, 0
    with progress(verb, total=None) as advance:
        while limit is None or matched < limit:
            asked = {**body, "limit": _ROUND_MAX if limit is None else min(_ROUND_MAX, limit - matched)}
            try:
                answer = api.post(f"/executions/{verb}", encode({**asked, "cursor": cursor}), key=key)
            except ApiUnreachable as error:
                again = "" if key is None else f" with --idempotency-key {key}, so that nothing is done twice"
                raise ApiUnreachable(
                    f"{error.message}\n{changed} were {_DONE[verb]} before that; say it again{again}"
                ) from None
            yield answer
            matched, changed = matched + answer["matched"], changed + answer["changed"]
            advance(answer["matched"])
            cursor = answer["next_cursor"]
            if cursor is None:
                return


def _summed(answers: Iterable[Json]) -> dict[str, Any]:
    total: dict[str, Any] = {"dry_run": False, "matched": 0, "changed": 0, "items": [], "next_cursor": None}
    for answer in answers:
        total["matched"] += answer["matched"]
        total["changed"] += answer["changed"]
        total["items"] += answer["items"]
        total["dry_run"], total["next_cursor"] = answer["dry_run"], answer["next_cursor"]
    return total


def _ask_first(verb: str, total: dict[str, Any]) -> None:
    if not total["matched"]:
        return
    if not typer.confirm(f"{verb} {total['matched']} executions ({_statuses(total)})?", err=True):
        raise bad_input("nothing was changed")


def _print(verb: str, total: dict[str, Any]) -> None:
    if not total["matched"]:
        print_line("no execution is meant")
        return
    ids = [str(item["id"]) for item in total["items"]]
    more = "" if len(ids) <= _NAMED_MAX else f" and {len(ids) - _NAMED_MAX} more"
    named = ", ".join(ids[:_NAMED_MAX]) + more
    if total["dry_run"]:
        print_line(f"would {verb} {total['matched']} ({_statuses(total)}): {named}")
    else:
        print_line(
            f"{total['changed']} of {total['matched']} {_DONE[verb]} (now {_statuses(total)}): {named}"
        )
    refused = [item for item in total["items"] if item.get("problem") is not None]
    for item in refused[:_WARNED_MAX]:
        warn(f"{item['id']}: {item['problem']['code']}: {item['problem']['detail']}")
    if len(refused) > _WARNED_MAX:
        warn(f"and {len(refused) - _WARNED_MAX} more were refused; --json names them all")
    if total["next_cursor"] is not None:
        warn("there are more: --limit is reached")


def _statuses(total: dict[str, Any]) -> str:
    counts = Counter(item["status"] for item in total["items"])
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())
