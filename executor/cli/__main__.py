"""`python -m turnstile.executor.cli` is the command `executor`, without the demo."""

from turnstile.executor.cli import main

main()
