"""`executor audit`: checks the rows and the memory of the leader, over the HTTP API."""

from typing import Annotated, Final

import typer

from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.output import Columns, JsonOption, counted, instant, print_line, print_table, show

_COLUMNS: Final = {"CHECK": "name", "ROWS": "rows", "VIOLATIONS": "faults", "INVARIANT": "says"}
_EXAMPLE_COLUMNS: Final[Columns] = {
    "CHECK": "check",
    "ID": lambda example: f"{example['subject']} {example['id']}",
    "EXPECTED": "expected",
    "FOUND": "found",
}


@with_api
def audit(
    api: Api,
    live: Annotated[
        bool, typer.Option("--live", help="Skip the history: the cost depends only on live executions.")
    ] = False,
    examples: Annotated[
        int,
        typer.Option(min=0, max=100, metavar="NUMBER", help="Maximum number of examples per violated check."),
    ] = 10,
    as_json: JsonOption = False,
) -> None:
    """Check that all rows agree, and that the leader remembers what they say.

    Compares in one snapshot what is kept of executions with their records, and finds executions and commands
    that are overdue. The leader compares its memory with the rows once a minute. Exit code 0: no violations;
    1: violations.
    """
    found = api.get("/audit", {"record": "false" if live else "true", "examples": examples})
    show(found, _print, as_json=as_json)
    if not found["clean"]:
        raise typer.Exit(ExitCode.FAILED)


def _print(found: Json) -> None:
    print_table(_COLUMNS, found["checks"], empty="No checks")
    examples = [
        Json({**example, "check": check["name"], "subject": check["subject"]})
        for check in found["checks"]
        for example in check["examples"]
    ]
    if examples:
        print_line("")
        print_table(_EXAMPLE_COLUMNS, examples, empty="")
    count = sum(check["faults"] for check in found["checks"])
    print_line("")
    print_line(f"{instant(found['checked_at'])}: {counted(count, 'violation') if count else 'no violations'}")
