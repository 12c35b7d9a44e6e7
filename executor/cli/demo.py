"""`executor demo`: runs the demo of the stress package, which the container image does not contain.

It is imported by name: a service must not depend on the stress test or the local servers.
"""

from importlib import import_module
from typing import Annotated

import typer

from turnstile.common.cli import EXIT_USAGE, CommandFailed

_MODULE = "turnstile.stress.demo"


def demo(
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Start everything, submit nothing, print the URLs and run until Ctrl-C."),
    ] = False,
) -> None:
    """Run 200 executions on private servers and check order and limits.

    The report at the end is computed from the history and from what the actions recorded. Afterwards all
    servers are stopped and their folder is deleted.
    """
    try:
        command = import_module(_MODULE)
    except ModuleNotFoundError as error:
        raise CommandFailed(
            f"the demo is not part of this installation ({error.name} is missing); run `make demo` in a "
            "clone of the repository",
            exit_code=EXIT_USAGE,
        ) from None
    raise typer.Exit(command.run_demo(stay=stay))
