"""`executor cancel` and `executor retry`: by ids, or for all executions that match a filter.

In: ids or a filter. Out: one line per id, or a summary for a filter, and every item with `--json`. A terminal
prompts for confirmation of a filter; without one, a cancel by filter needs `--yes`. A terminal status never
changes, so a retry is a new execution.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Final
from uuid import uuid4

import typer

from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.arguments import bad_input, encode, execution_id, with_filter
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.confirmation import YesOption, confirm
from turnstile.executor.cli.documents import BulkTotal
from turnstile.executor.cli.output import JsonOption, for_each, print_json, print_line, progress, warn
from turnstile.executor.cli.pagination import change_matching
from turnstile.executor.cli.submit import acceptance

_IDS_MAX: Final = 10
_WARNINGS_MAX: Final = 20
_BATCH_MAX: Final = 1000

IdsArgument = Annotated[
    list[int] | None,
    typer.Argument(
        metavar="ID", parser=execution_id, help="Execution ids, like 4711, unless a filter is given."
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what would be changed and what is left out; change nothing."),
]
LimitOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="NUMBER", help="Maximum number of executions for a filter. Default: all."),
]


@with_api
@with_filter
def cancel(
    api: Api,
    *,
    execution_ids: IdsArgument = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Reason, stored with the execution.")
    ] = None,
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
    options = {} if reason is None else {"reason": reason}
    by_id = _is_by_id("cancel", execution_ids, matching)
    if by_id and dry_run:
        _show_plan(api, "cancel", execution_ids or (), as_json=as_json)
    elif by_id:
        body = encode(options)
        for_each(
            execution_ids or (),
            lambda i: api.post(f"/executions/{i}/cancel", body),
            _cancelled,
            as_json=as_json,
        )
    else:
        change = partial(change_matching, api, "cancel", key=None, limit=limit)
        _change_all(
            "cancel", change, {"filter": matching, **options}, dry_run=dry_run, yes=yes, as_json=as_json
        )


@with_api
@with_filter
def retry(
    api: Api,
    *,
    execution_ids: IdsArgument = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="A second retry with the same key returns the first one."),
    ] = None,
    matching: dict[str, Any],
    dry_run: DryRunOption = False,
    limit: LimitOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Retry ended executions: each retry is a new execution.

    A filter without --status matches failed, timeout, expired and abandoned executions.
    Examples: executor retry 4711; executor retry 4711 4712 --dry-run;
    executor retry --action reports.render --status failed --dry-run
    """
    key = idempotency_key or str(uuid4())
    by_id = _is_by_id("retry", execution_ids, matching)
    if by_id and dry_run:
        _show_plan(api, "retry", execution_ids or (), as_json=as_json)
    elif by_id:
        for_each(
            execution_ids or (),
            lambda i: api.post(f"/executions/{i}/retry", key=f"{key}/{i}"),
            _retried,
            as_json=as_json,
        )
    else:
        change = partial(change_matching, api, "retry", key=key, limit=limit)
        _change_all("retry", change, {"filter": matching}, dry_run=dry_run, yes=yes, as_json=as_json)


def _is_by_id(verb: str, ids: Sequence[int] | None, matching: dict[str, Any]) -> bool:
    if ids and matching:
        raise bad_input("give ids or a filter, not both")
    if not (ids or matching):
        raise bad_input(
            f"give ids, like 'executor {verb} 4711', or a filter, like 'executor {verb} --action "
            "reports.render --dry-run'"
        )
    return bool(ids)


def _show_plan(api: Api, verb: str, ids: Sequence[int], *, as_json: bool) -> None:
    batches = [ids[start : start + _BATCH_MAX] for start in range(0, len(ids), _BATCH_MAX)]
    pages = (api.post(f"/executions/{verb}", encode({"ids": [*batch], "dry_run": True})) for batch in batches)
    planned = _summed(pages)
    if as_json:
        print_json(BulkTotal(**planned))
    else:
        _print(verb, planned)


def _cancelled(requested: int, execution: Json) -> str:
    if execution["status"] == "cancelled":
        return f"Cancelled {requested}"
    return f"Cancelling {requested}: {execution['status']}; a cancel message is sent to its worker"


def _retried(requested: int, accepted: Json) -> str:
    return f"Retried {requested} as {accepted['id']}: {acceptance(accepted)}"


def _change_all(
    verb: str, change: Any, body: dict[str, Any], *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    def total(*, dry_run: bool) -> dict[str, Any]:
        with progress(verb, total=None) as advance:
            return _summed(change({**body, "dry_run": dry_run}, on_matched=advance))

    if not dry_run:
        # A retry only adds executions.
        destroys = "a cancel by filter ends executions for good" if verb == "cancel" else None
        confirm(lambda: _question(verb, total(dry_run=True)), yes=yes, destroys=destroys)
    result = total(dry_run=dry_run)
    if as_json:
        print_json(BulkTotal(**result))
    else:
        _print(verb, result)
    if any("problem" in item and item["problem"] is not None for item in result["items"]):
        raise typer.Exit(ExitCode.FAILED)


def _summed(pages: Iterable[Json]) -> dict[str, Any]:
    total: dict[str, Any] = {
        "dry_run": False,
        "matched": 0,
        "changed": 0,
        "items": [],
        "left_out": [],
        "left_out_is_partial": False,
        "next_cursor": None,
    }
    for page in pages:
        total["matched"] += page["matched"]
        total["changed"] += page["changed"]
        total["items"] += page["items"]
        # An executor of the previous version does not say what is left out.
        total["left_out"] += page.get("left_out", [])
        total["left_out_is_partial"] |= page.get("left_out_is_partial", False)
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
    ids = [str(item["id"]) for item in total["items"]]
    more = "" if len(ids) <= _IDS_MAX else f" and {len(ids) - _IDS_MAX} more"
    listed = ", ".join(ids[:_IDS_MAX]) + more
    if total["dry_run"]:
        print_line(f"Would {verb} {total['matched']} ({_statuses(total)}): {listed}")
    else:
        done = {"cancel": "Cancellation requested", "retry": "Retried"}[verb]
        print_line(f"{done}: {total['changed']} of {total['matched']} (now {_statuses(total)}): {listed}")
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
