"""Names of actions on the command line: checked before anything is asked for, and completed by the shell.

In: what was typed. Out: a name, or what a name looks like. A completion asks the API, if it answers quickly.
"""

import contextlib
import os
from typing import Annotated, Final

import typer

from turnstile.common.action_definition import check_ref
from turnstile.common.command_line import CommandFailed, environment_name

_COMPLETION_SECONDS: Final = 1.0
_COMPLETED_MAX: Final = 1000


def checked_ref(text: str) -> str:
    """Return a name that was typed."""
    try:
        return check_ref(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def complete_ref(incomplete: str) -> list[str]:
    """Return the names of actions that begin so; nothing where the API does not answer at once."""
    return [ref for ref in _names("/actions", {}, "ref") if ref.startswith(incomplete)]


def complete_worker(incomplete: str) -> list[str]:
    """Return the ids of live workers that begin so."""
    return [name for name in _names("/workers", {"state": "live"}, "id") if name.startswith(incomplete)]


def _names(path: str, query: dict[str, str], field: str) -> list[str]:
    from turnstile.executor.cli.connection import ApiSettings, connect  # noqa: PLC0415

    settings = {name: os.environ.get(environment_name(name)) for name in ApiSettings.model_fields}
    try:
        with contextlib.closing(connect(**settings)) as api:
            page = api.get(path, {**query, "limit": _COMPLETED_MAX}, timeout_seconds=_COMPLETION_SECONDS)
            return [item[field] for item in page["items"]]
    except CommandFailed:
        # It would spoil the line that somebody is typing.
        return []


RefArgument = Annotated[
    str,
    typer.Argument(
        metavar="REF", parser=checked_ref, autocompletion=complete_ref, help="Like reports.render."
    ),
]
RefsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="REF", parser=checked_ref, autocompletion=complete_ref, help="Like reports.render."
    ),
]
RefOption = Annotated[
    str | None,
    typer.Option(
        "--action",
        metavar="REF",
        parser=checked_ref,
        autocompletion=complete_ref,
        help="Only executions of this action.",
    ),
]
