"""`executor cancel` and `executor retry`: by ids, or for all executions that match a filter.

In: ids or a filter. Out: one line per id, or a summary for a filter, and every item with `--json`. A terminal
prompts for confirmation of a filter; without one, a cancel by filter needs `--yes`. A terminal status never
changes, so a retry is a new execution.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final
from uuid import uuid4

import typer

from turnstile.common.cli import bad_input
from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.arguments import (
    EXECUTION,
    argument,
    encode,
    given,
    option,
    read_parameters,
    with_filter,
)
from turnstile.executor.cli.client import Api, ApiUnreachable, Json, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption, confirm, listed
from turnstile.executor.cli.documents import BulkTotal
from turnstile.executor.cli.editing import with_edited
from turnstile.executor.cli.output import (
    JsonOption,
    for_each,
    print_json,
    print_line,
    progress,
    show,
    warn,
)
from turnstile.executor.cli.selections import by_ids
from turnstile.executor.cli.submit import acceptance

_WARNINGS_MAX: Final = 20
_BATCH_MAX: Final = 1000

IdsArgument = Annotated[
    list[int] | None, argument(EXECUTION, "Execution ids, like 4711, unless a filter is given.")
]
LimitOption = Annotated[
    int | None, option("NUMBER", "Maximum number of executions for a filter. Default: all.", min=1)
]


@with_api
@with_filter
def cancel(
    api: Api,
    *,
    execution_ids: IdsArgument = None,
    reason: Annotated[str | None, option("TEXT", "Reason, stored with the execution.")] = None,
    matching: dict[str, Any],
    dry_run: DryRunOption = False,
    limit: LimitOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel waiting and running executions.

    A running execution is stopped by its worker, and killed after a grace period.

    Examples: executor cancel 4711 4712 --reason "no longer needed";
    executor cancel --action reports.render --status queued --dry-run

    With a filter, a terminal prompts for confirmation; without a terminal, --yes is needed.
    """
    options = given(reason=reason)
    body = encode(options)
    _change(
        api,
        "cancel",
        execution_ids,
        {"filter": matching, **options},
        change=lambda i: api.post(f"/executions/{i}/cancel", body),
        changed=_cancelled,
        destroys="a cancel by filter ends executions for good",
        dry_run=dry_run,
        limit=limit,
        yes=yes,
        as_json=as_json,
    )


@with_api
@with_filter
def retry(
    api: Api,
    *,
    execution_ids: IdsArgument = None,
    idempotency_key: Annotated[
        str | None, option("KEY", "A second retry with the same key returns the first one.")
    ] = None,
    parameters: Annotated[
        str | None, option("JSON|-", "All parameters of the retry, as one JSON object; '-': from stdin.")
    ] = None,
    edit: Annotated[
        bool, typer.Option("--edit", help="Edit the parameters in $VISUAL or $EDITOR first.")
    ] = False,
    matching: dict[str, Any],
    dry_run: DryRunOption = False,
    limit: LimitOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Retry ended executions: each retry is a new execution.

    A filter without --status matches failed, timeout, expired and abandoned executions.
    Examples: executor retry 4711; executor retry 4711 --edit; executor retry 4711 4712 --dry-run;
    executor retry --action reports.render --status failed --dry-run
    """
    key = idempotency_key or str(uuid4())
    if edit or parameters is not None:
        one = execution_ids or []
        if len(one) != 1 or matching or dry_run or (edit and parameters is not None):
            raise bad_input(
                "--parameters, --edit: give one of them, with one id and without filter and --dry-run, like "
                "'executor retry 4711 --edit'"
            )
        _retry_edited(api, one[0], key, parameters, as_json=as_json)
        return
    _change(
        api,
        "retry",
        execution_ids,
        {"filter": matching},
        change=lambda i: api.post(f"/executions/{i}/retry", key=f"{key}/{i}"),
        changed=_retried,
        # A retry only adds executions.
        destroys=None,
        key=key,
        dry_run=dry_run,
        limit=limit,
        yes=yes,
        as_json=as_json,
    )


def _cancelled(requested: int, execution: Json) -> str:
    if execution["status"] == "cancelled":
        return f"Cancelled {requested}"
    return f"Cancelling {requested}: {execution['status']}; a cancel message is sent to its worker"


def _retry_edited(api: Api, execution_id: int, key: str, parameters: str | None, *, as_json: bool) -> None:
    """Retry one execution with these parameters; None: those that the user edits."""
    path = f"/executions/{execution_id}"

    def send(edited: dict[str, Any]) -> None:
        accepted = api.post(f"{path}/retry", encode({"parameters": edited}), key=f"{key}/{execution_id}")
        show(accepted, lambda it: print_line(_retried(execution_id, it)), as_json=as_json)

    if parameters is not None:
        send(read_parameters(parameters))
    else:
        with_edited(api.get(path)["parameters"], send)


def _retried(requested: int, accepted: Json) -> str:
    return f"Retried {requested} as {accepted['id']}: {acceptance(accepted)}"


def change_matching(
    api: Api, verb: str, body: dict[str, Any], *, key: str | None, limit: int | None
) -> Iterator[Json]:
    """POST `body` to `/executions/{verb}` until its filter matches nothing more, or `limit` is reached.

    Raises ApiUnreachable with how many were changed before, and how to repeat the command safely.
    """
    cursor, matched, changed = None, 0, 0
    while limit is None or matched < limit:
        batch_max = _BATCH_MAX if limit is None else min(_BATCH_MAX, limit - matched)
        batch = {**body, "limit": batch_max, "cursor": cursor}
        try:
            page = api.post(f"/executions/{verb}", encode(batch), key=key)
        except ApiUnreachable as error:
            same_key = "" if key is None else f" with --idempotency-key {key}, so that nothing is repeated"
            raise ApiUnreachable(
                f"{error.message}\n{changed} executions were changed before; run the command again{same_key}"
            ) from None
        yield page
        matched, changed = matched + page["matched"], changed + page["changed"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


def _change(
    api: Api,
    verb: str,
    ids: Sequence[int] | None,
    body: dict[str, Any],
    *,
    change: Callable[[int], Json],
    changed: Callable[[int, Json], str],
    destroys: str | None,
    key: str | None = None,
    dry_run: bool,
    limit: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    if bool(ids) == bool(body["filter"]):
        raise bad_input(
            "give ids or a filter, not both"
            if ids
            else f"give ids, like 'executor {verb} 4711', or a filter, like 'executor {verb} --action "
            "reports.render --dry-run'"
        )
    if ids and not dry_run:
        for_each(ids, change, changed, as_json=as_json)
        return

    def pages(*, dry_run: bool) -> Iterable[Json]:
        if not ids:
            return change_matching(api, verb, {**body, "dry_run": dry_run}, key=key, limit=limit)
        return (api.post(f"/executions/{verb}", encode({**each, "dry_run": True})) for each in by_ids(ids))

    if not dry_run:
        confirm(lambda: _question(verb, _summed(verb, pages(dry_run=True))), yes=yes, destroys=destroys)
    result = _summed(verb, pages(dry_run=dry_run))
    if as_json:
        print_json(BulkTotal(**result))
    else:
        _print(verb, result)
    if any(item.get("problem") is not None for item in result["items"]):
        raise typer.Exit(ExitCode.FAILED)


def _summed(verb: str, pages: Iterable[Json]) -> dict[str, Any]:
    total: dict[str, Any] = {
        "dry_run": False,
        "matched": 0,
        "changed": 0,
        "items": [],
        "left_out": [],
        "left_out_is_partial": False,
        "next_cursor": None,
    }
    with progress(verb, total=None) as advance:
        for page in pages:
            advance(page["matched"])
            for name in ("matched", "changed", "items", "left_out"):
                total[name] += page[name]
            total["left_out_is_partial"] |= page["left_out_is_partial"]
            total["dry_run"], total["next_cursor"] = page["dry_run"], page["next_cursor"]
    return total


def _question(verb: str, total: dict[str, Any]) -> str | None:
    _print_left_out(total)
    if not total["matched"]:
        return None
    return f"{verb.capitalize()} {total['matched']} executions ({_statuses(total)})?"


def _print(verb: str, total: dict[str, Any]) -> None:
    if total["dry_run"]:
        _print_left_out(total)
    if not total["matched"]:
        print_line("No matching executions" if not total["left_out"] else f"Nothing to {verb}")
        return
    ids = listed([str(item["id"]) for item in total["items"]])
    if total["dry_run"]:
        print_line(f"Would {verb} {total['matched']} ({_statuses(total)}): {ids}")
    else:
        done = {"cancel": "Cancellation requested", "retry": "Retried"}[verb]
        print_line(f"{done}: {total['changed']} of {total['matched']} (now {_statuses(total)}): {ids}")
    refused = [item for item in total["items"] if item.get("problem") is not None]
    for item in refused[:_WARNINGS_MAX]:
        warn(f"{item['id']}: {item['problem']['code']}: {item['problem']['detail']}")
    if len(refused) > _WARNINGS_MAX:
        warn(f"and {len(refused) - _WARNINGS_MAX} more rejected; --json lists all")
    if total["next_cursor"] is not None:
        warn("more executions match: --limit was reached")


def _print_left_out(total: dict[str, Any]) -> None:
    for each in total["left_out"]:
        warn(f"left out: {each['count']} {each['status'] or 'unknown'} ({each['reason']})")
    if total["left_out_is_partial"]:
        warn("only the newest executions were counted as left out")


def _statuses(total: dict[str, Any]) -> str:
    counts = Counter(item["status"] for item in total["items"])
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())
