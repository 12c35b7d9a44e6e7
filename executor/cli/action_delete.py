"""`executor actions delete`: forgets actions; their executions stay in the record.

In: names, and what is to become of executions that wait. Out: what was ended with each. What is not said is
asked on a terminal; elsewhere an action that something waits for stays.
"""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from turnstile.common.command_line import EXIT_FAILED
from turnstile.executor.cli.arguments import can_be_asked
from turnstile.executor.cli.connection import Api, ApiRefused, Json, with_api
from turnstile.executor.cli.output import JsonOption, print_json, print_line, warn
from turnstile.executor.cli.refs import RefsArgument


class Waiting(StrEnum):
    """What becomes of executions that wait for an action that is to be deleted."""

    ASK = "ask"
    CANCEL = "cancel"
    REFUSE = "refuse"


WaitingOption = Annotated[
    Waiting,
    typer.Option(
        metavar="ask|cancel|refuse",
        help="What becomes of executions that wait for what is deleted: end them, or keep the action. "
        "'ask' asks on a terminal, and is 'refuse' elsewhere.",
    ),
]


@with_api
def delete_actions(
    api: Api, refs: RefsArgument, waiting: WaitingOption = Waiting.ASK, as_json: JsonOption = False
) -> None:
    """Delete actions; their executions stay in the record.

    While something of an action runs, it is never deleted. Example: executor actions delete reports.render
    --waiting cancel
    """
    refused = 0
    for ref in refs:
        try:
            answer = delete(api, ref, waiting)
        except ApiRefused as refusal:
            refused += 1
            warn(f"{ref}: {refusal.message}")
            continue
        if as_json:
            print_json(answer, on_one_line=True)
        else:
            ended = f"; {answer['cancelled']} that waited were ended" if answer["cancelled"] else ""
            print_line(f"{ref}: deleted{ended}")
    if refused:
        raise typer.Exit(EXIT_FAILED)


def delete(api: Api, ref: str, waiting: Waiting) -> Json:
    """Delete one action; raises ApiRefused where it stays."""
    first = Waiting.CANCEL if waiting is Waiting.CANCEL else Waiting.REFUSE
    try:
        return api.delete(f"/actions/{ref}", {"waiting": first})
    except ApiRefused as refusal:
        count, running = refusal.problem.get("waiting"), refusal.problem.get("running")
        if waiting is Waiting.REFUSE or running or not count:
            raise
        if waiting is Waiting.ASK and can_be_asked() and sys.stderr.isatty():
            if not typer.confirm(f"{count} executions wait for {ref}; end them with it?", err=True):
                raise
            return api.delete(f"/actions/{ref}", {"waiting": Waiting.CANCEL})
        raise ApiRefused(
            {
                **refusal.problem,
                "detail": f"{count} executions wait for it; end them with it: --waiting cancel",
            }
        ) from None
