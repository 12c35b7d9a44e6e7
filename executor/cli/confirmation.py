"""The confirmation of commands that destroy something: a prompt on a terminal, `--yes` everywhere else.

In: what would be done, as a question. Out: agreement, or an error with exit code 2 before the first change:
a script, a pipe or cron destroys nothing without `--yes`.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from turnstile.executor.cli.arguments import bad_input, is_interactive

_LISTED_MAX: Final = 10

YesOption = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not prompt for confirmation."),
]
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


def confirm_counted(
    count: Callable[[], int], question: Callable[[int], str], *, yes: bool, destroys: str
) -> int | None:
    """Return the number that the user agreed to; raises CommandFailed without agreement.

    `count` is called only where a user can answer. None: there was no question, as with `yes`. 0: there is
    nothing to change.
    """
    confirmed: int | None = None

    def asked() -> str | None:
        nonlocal confirmed
        confirmed = count()
        return question(confirmed) if confirmed else None

    confirm(asked, yes=yes, destroys=destroys)
    return confirmed


def confirm_named(named: Callable[[], Sequence[str]], *, asks: str, destroys: str, yes: bool) -> None:
    """Return if the user agrees to what a command does with each subject; raises CommandFailed if not.

    `named` returns what the question calls them, and is called only where a user can answer. `asks` is the
    question without these names, like "Delete the resources".
    """
    confirm(lambda: f"{asks} {listed(named())}?", yes=yes, destroys=destroys)


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _LISTED_MAX
    return ", ".join(names[:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
