"""The program `turnstile`, also as `python -m turnstile`."""

import sys


def main() -> None:
    """Run `turnstile healthcheck` directly, because importing the whole command line takes far longer."""
    if sys.argv[1:] == ["healthcheck"]:
        from turnstile.healthcheck import healthcheck  # noqa: PLC0415

        healthcheck()
    else:
        from turnstile.cli import main as run  # noqa: PLC0415

        run()


if __name__ == "__main__":
    main()
