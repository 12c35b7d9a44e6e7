"""`python -m executor.cli` is the command `executor`."""

from executor.cli import app

app(prog_name="executor")
