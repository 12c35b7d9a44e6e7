"""Which executions are meant: the options that `list`, `cancel` and `retry` share.

In: what was typed. Out: the filter as the API takes it, without what was not given.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from turnstile.common.domain.states import Status
from turnstile.executor.cli.arguments import bad_input, instant_text
from turnstile.executor.cli.refs import complete_worker

StatusOption = Annotated[
    list[Status] | None,
    typer.Option(metavar="STATUS", help=f"Only these; may be repeated. One of {', '.join(Status)}."),
]
KeyOption = Annotated[str | None, typer.Option("--concurrency-key", help="Only the queue of this key.")]
AfterOption = Annotated[
    str | None,
    typer.Option(
        "--created-after", parser=instant_text, metavar="INSTANT", help="Like 2026-11-21T07:30:00Z."
    ),
]
BeforeOption = Annotated[
    str | None,
    typer.Option(
        "--created-before", parser=instant_text, metavar="INSTANT", help="Like 2026-11-21T07:30:00Z."
    ),
]
WorkerOption = Annotated[
    str | None,
    typer.Option(
        "--worker",
        metavar="ID",
        autocompletion=complete_worker,
        help="Only those that this worker has or had.",
    ),
]
MetadataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata", metavar="NAME=VALUE", help="Only with this metadata; may be repeated: all must hold."
    ),
]


def selection(
    *,
    action: str | None,
    status: Sequence[Status] | None,
    concurrency_key: str | None,
    created_after: str | None,
    created_before: str | None,
    worker: str | None,
    metadata: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the filter; empty: everything is meant."""
    given: dict[str, Any] = {
        "action_ref": action,
        "status": [one.value for one in status] if status else None,
        "concurrency_key": concurrency_key,
        "created_after": created_after,
        "created_before": created_before,
        "worker_id": worker,
        "metadata": _metadata(metadata or ()) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def as_query(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a filter as the query of a list."""
    metadata = [f"{name}:{value}" for name, value in wanted.get("metadata", {}).items()]
    return {**wanted, "metadata": metadata or None}


def _metadata(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not name or not sign:
            raise bad_input(f"--metadata {word!r}: expected NAME=VALUE, like tenant=acme")
        if name in found:
            raise bad_input(f"--metadata {word!r}: {name} is given twice; an execution has one value of it")
        found[name] = value
    return found
