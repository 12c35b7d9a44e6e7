"""The command line `executor`.

In: arguments, and settings from the environment. Out: a service (`serve`), a database (`migrate`), or an
answer of the HTTP API, for people or with `--json` for scripts. Exit codes: 0 done, 1 something was refused
or failed, 2 wrong usage or setting, 3 a server cannot be reached, 4 waited too long.
"""

import sys
from io import TextIOWrapper

from common.command_line import command_line
from executor.cli import actions, dead_letters, queue, workers
from executor.cli.audit import audit
from executor.cli.demo import demo
from executor.cli.executions import cancel, get, list_executions
from executor.cli.serve import migrate, serve
from executor.cli.submit import submit

app = command_line(
    "Runs executions of actions in strict arrival order, never more at once than each action allows."
)
app.command()(serve)
app.command()(migrate)
app.command()(demo)
app.command()(submit)
app.command()(get)
app.command("list")(list_executions)
app.command()(cancel)
app.command()(audit)
app.add_typer(actions.app, name="actions")
app.add_typer(queue.app, name="queue")
app.add_typer(workers.app, name="workers")
app.add_typer(dead_letters.app, name="dead-letters")


def main() -> None:
    """Run the command line."""
    # A terminal that cannot show a character gets its escape instead.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="executor")
