"""Changes that are asked for: a prompt on a terminal, `--yes` everywhere else, and a report per subject.

In: what would be done, as a question. Out: agreement, or an error with exit code 2 before the first change:
a script, a pipe or cron destroys nothing without `--yes`.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeVar

import typer

from turnstile.common.cli import bad_input
from turnstile.executor.cli.arguments import is_interactive
from turnstile.executor.cli.output import for_each

T = TypeVar("T")
Known = TypeVar("Known")
Result = TypeVar("Result")

_LISTED_MAX: Final = 10

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not prompt for confirmation.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]


def can_prompt() -> bool:
    """Return whether a user sees a question, which goes to stderr, and can answer it."""
    return is_interactive() and sys.stderr is not None and sys.stderr.isatty()


def confirm(question: Callable[[], str | None], *, yes: bool, destroys: str | None) -> None:
    """Return if the user agrees; raises CommandFailed if not.

    `question` is called only where a user can answer it; it may return None: there is nothing to change.
    `destroys` says what is destroyed, like "a purge deletes messages", and requires `yes` without a terminal.
    None: nothing is destroyed, and no agreement is needed there. The command has the option `--dry-run`.
    """
    if yes:
        return
    if not can_prompt():
        if destroys is not None:
            raise bad_input(
                f"{destroys}, and without a terminal there is no prompt: add --yes, or --dry-run to see what "
                "it would do; nothing was changed"
            )
        return
    asked = question()
    if asked is not None and not typer.confirm(asked, err=True):
        raise bad_input("aborted; nothing was changed")


def change_named(
    subjects: Sequence[T],
    *,
    read: Callable[[T], Known],
    plan: Callable[[T, Known], str],
    asks: str,
    destroys: str,
    names: Callable[[], Sequence[str]] | None = None,
    change: Callable[[T], Result],
    changed: Callable[[T, Result], str],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Change each subject after agreement, or with `dry_run` show what would be done; report each subject.

    `asks` is the question without the names, like "Delete the resources". `names` returns what the question
    calls the subjects, and is called only where a user can answer. `read` returns what is known of a subject
    as JSON that says `dry_run`, and changes nothing.
    """
    if dry_run:
        for_each(subjects, read, plan, as_json=as_json)
        return
    confirm(
        lambda: f"{asks} {listed(names() if names else [*map(str, subjects)])}?", yes=yes, destroys=destroys
    )
    for_each(subjects, change, changed, as_json=as_json)


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _LISTED_MAX
    return ", ".join(names[:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
