"""What the deployments say to our programs, put before the real command lines."""

from importlib import import_module

from typer.testing import CliRunner


def help_of(command: list[str]) -> tuple[int, str]:
    """Let the real command line parse the command up to its end, where --help stops it before it acts."""
    program, *arguments = command
    app = import_module(f"turnstile.{program}.cli").app
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"})
    return result.exit_code, result.output
