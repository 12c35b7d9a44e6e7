"""`executor attention`: what needs attention, each with the command that mends it."""

from typing import Annotated, Final

import typer

from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.arguments import duration
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.output import JsonOption, counted, instant, print_json, print_line

_STYLES: Final = {"critical": "bold red", "warning": "yellow", "notice": "bold"}
_NOTICE: Final = "notice"


@with_api
def attention(
    api: Api,
    *,
    waited: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default=False,
            help="Name a full resource, rate, total or pool after work has waited so long. [default: 1m]",
        ),
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """List what needs attention, the worst first, each with the command that mends it.

    Exit code 0: nothing does, though there may be notices, which say that a bound is reached that was set; 1:
    something is critical or a warning. The dashboard's home shows the same, and docs/runbook.md explains each
    kind.
    """
    found = api.get("/attention", {"waited": f"{waited:g}"})
    items: list[Json] = [Json(each) for each in found["items"]]
    faults = [each for each in items if each["severity"] != _NOTICE]
    if as_json:
        print_json(found)
    else:
        for each in items:
            _print(each)
        print_line(f"{counted(len(faults), 'fault')}, {counted(len(items) - len(faults), 'notice')}")
    if faults:
        raise typer.Exit(ExitCode.FAILED)


def _print(card: Json) -> None:
    since = f", since {instant(card['since'])}" if card["since"] else ""
    print_line(
        f"{card['severity']}: {card['title']} ({card['kind']}{since})", style=_STYLES[card["severity"]]
    )
    print_line(f"  {card['detail']}")
    print_line(f"  $ {card['command']}")
    print_line("")
