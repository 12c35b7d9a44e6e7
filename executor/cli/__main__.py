"""`python -m turnstile.executor.cli` is the command `executor`."""

from turnstile.executor.cli import main

main()
