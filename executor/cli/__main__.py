"""`python -m executor.cli` is the command `executor`."""

from turnstile.executor.cli import main

main()
