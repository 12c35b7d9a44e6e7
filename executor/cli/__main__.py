"""`python -m executor.cli` is the command `executor`."""

from executor.cli import main

main()
