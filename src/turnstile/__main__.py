"""`python -m turnstile` is the command `turnstile`."""

from turnstile.cli import main

if __name__ == "__main__":
    main()
