"""`executor cancel` and `executor retry`: by ids, or all that a filter names.

In: ids or a filter. Out: what became of each. Whatever ran is asked to stop; what has ended never changes, so
a retry is a new execution. Next: `executor.cli.rounds` goes through what a filter names.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any
from uuid import uuid4

import typer

from turnstile.common.command_line import EXIT_FAILED
from turnstile.executor.cli.arguments import bad_input, encode, execution_id
from turnstile.executor.cli.connection import Api, ApiRefused, Json, with_api
from turnstile.executor.cli.output import JsonOption, print_json, print_line, warn
from turnstile.executor.cli.refs import RefOption
from turnstile.executor.cli.rounds import DryRunOption, RoundsLimitOption, YesOption, for_all
from turnstile.executor.cli.selection import (
    AfterOption,
    BeforeOption,
    KeyOption,
    MetadataOption,
    StatusOption,
    WorkerOption,
    selection,
)

IdsArgument = Annotated[
    list[int] | None,
    typer.Argument(metavar="ID", parser=execution_id, help="Ids, like 4711; or a filter."),
]


@with_api
def cancel(
    api: Api,
    *,
    execution_ids: IdsArgument = None,
    reason: Annotated[str | None, typer.Option(help="Why, for the record.")] = None,
    action: RefOption = None,
    status: StatusOption = None,
    concurrency_key: KeyOption = None,
    created_after: AfterOption = None,
    created_before: BeforeOption = None,
    worker: WorkerOption = None,
    metadata: MetadataOption = None,
    dry_run: DryRunOption = False,
    limit: RoundsLimitOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """End executions; those that run are asked to stop.

    Examples: executor cancel 4711 4712 --reason "no longer needed";
    executor cancel --action reports.render --status queued --dry-run
    """
    wanted = selection(
        action=action,
        status=status,
        concurrency_key=concurrency_key,
        created_after=created_after,
        created_before=created_before,
        worker=worker,
        metadata=metadata,
    )
    said = {} if reason is None else {"reason": reason}
    if _by_id("cancel", execution_ids, wanted, dry_run=dry_run):
        _each(
            execution_ids or (),
            lambda i: api.post(f"/executions/{i}/cancel", encode(said)),
            _cancelled,
            as_json,
        )
    else:
        for_all(api, "cancel", wanted, said=said, dry_run=dry_run, limit=limit, yes=yes, as_json=as_json)


@with_api
def retry(
    api: Api,
    *,
    execution_ids: IdsArgument = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Said again with the same key, nothing is done twice.")
    ] = None,
    action: RefOption = None,
    status: StatusOption = None,
    concurrency_key: KeyOption = None,
    created_after: AfterOption = None,
    created_before: BeforeOption = None,
    worker: WorkerOption = None,
    metadata: MetadataOption = None,
    dry_run: DryRunOption = False,
    limit: RoundsLimitOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Do ended executions again, as new ones.

    By a filter without --status: those that failed, timed out, expired or were abandoned.
    Examples: executor retry 4711; executor retry --action reports.render --status failed --dry-run
    """
    wanted = selection(
        action=action,
        status=status,
        concurrency_key=concurrency_key,
        created_after=created_after,
        created_before=created_before,
        worker=worker,
        metadata=metadata,
    )
    key = idempotency_key or str(uuid4())
    if _by_id("retry", execution_ids, wanted, dry_run=dry_run):
        ask = lambda i: api.post(f"/executions/{i}/retry", key=f"{key}/{i}")  # noqa: E731
        _each(execution_ids or (), ask, _retried, as_json)
    else:
        for_all(api, "retry", wanted, key=key, dry_run=dry_run, limit=limit, yes=yes, as_json=as_json)


def _by_id(verb: str, ids: Sequence[int] | None, wanted: dict[str, Any], *, dry_run: bool) -> bool:
    if ids and wanted:
        raise bad_input("give ids, or a filter that names them, not both")
    if ids and dry_run:
        raise bad_input("--dry-run: ids are meant as they stand; it shows what a filter like --action names")
    if not (ids or wanted):
        raise bad_input(
            f"say which: ids, like 'executor {verb} 4711', or a filter, like 'executor {verb} --action "
            "reports.render --dry-run'"
        )
    return bool(ids)


def _each(
    ids: Sequence[int], ask: Callable[[int], Json], sentence: Callable[[int, Json], str], as_json: bool
) -> None:
    refused = 0
    for each in ids:
        try:
            answer = ask(each)
        except ApiRefused as refusal:
            refused += 1
            warn(f"{each}: {refusal.message}")
            continue
        if as_json:
            print_json(answer, on_one_line=True)
        else:
            print_line(sentence(each, answer))
    if refused:
        raise typer.Exit(EXIT_FAILED)


def _cancelled(asked: int, answer: Json) -> str:
    if answer["status"] == "cancelled":
        return f"{asked}: cancelled"
    return f"{asked}: {answer['status']}; its worker was asked to stop it"


def _retried(asked: int, answer: Json) -> str:
    place = "" if answer["position"] is None else f", position {answer['position']}"
    again = ", asked for before under this key" if answer["duplicate"] else ""
    return f"{asked}: again as {answer['id']}: {answer['status']}{place}{again}"
