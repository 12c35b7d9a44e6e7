"""The command line `executor`.

In: arguments, and settings from the environment. Out: a service (`serve`), a database (`migrate`), or an
answer of the HTTP API, for people or with `--json` for scripts. Exit codes: 0 done, 1 something was refused
or failed, 2 wrong usage or setting, 3 a server cannot be reached, 4 waited too long.
"""

from common.command_line import command_line
from executor.cli.serve import migrate, serve

app = command_line("Runs executions of actions in strict arrival order, never more at once than each allows.")
app.command()(serve)
app.command()(migrate)


def main() -> None:
    """Run the command line."""
    app()
