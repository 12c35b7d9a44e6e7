"""`executor audit`: everything recounted and compared, over the HTTP API. Exit code 1: something is wrong."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer

from turnstile.common.command_line import EXIT_FAILED
from turnstile.executor.cli.connection import Api, Json, with_api
from turnstile.executor.cli.output import JsonOption, instant, print_json, print_line, print_table

_HEADINGS: Final = ("CHECK", "ROWS", "WRONG", "WHAT MUST HOLD")
_EXAMPLE_HEADINGS: Final = ("CHECK", "ID", "EXPECTED", "FOUND")


@with_api
def audit(
    api: Api,
    live: Annotated[
        bool, typer.Option("--live", help="Leave the record out: the cost follows what lives.")
    ] = False,
    examples: Annotated[int, typer.Option(min=0, max=100, help="Most examples of each fault.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Recount everything and compare.

    Counters against rows, slots against statuses, states, and links that are stuck, all in one snapshot. Exit
    code 0: all agrees; 1: something does not.
    """
    found = api.get("/audit", {"record": "false" if live else "true", "examples": examples})
    if as_json:
        print_json(found)
    else:
        _print(found)
    if not found["clean"]:
        raise typer.Exit(EXIT_FAILED)


def _print(found: Json) -> None:
    rows = ((check["name"], check["rows"], check["faults"], check["says"]) for check in found["checks"])
    print_table(_HEADINGS, rows, empty="nothing was checked")
    wrong = list(_examples(found))
    if wrong:
        print_line("")
        print_table(_EXAMPLE_HEADINGS, wrong, empty="")
    faults = sum(check["faults"] for check in found["checks"])
    print_line("")
    print_line(f"{instant(found['checked_at'])}: {f'{faults} wrong' if faults else 'clean'}")


def _examples(found: Json) -> Iterator[Sequence[object]]:
    for check in found["checks"]:
        for example in check["examples"]:
            yield (
                check["name"],
                f"{check['subject']} {example['id']}",
                example["expected"],
                example["found"],
            )
