"""`worker actions`: one action of a module, and modules that do not load."""

import json
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

import pytest
from typer.testing import CliRunner, Result

from turnstile.worker.cli import app

_TWO = "from turnstile import action\n@action('a', ttl='1m')\ndef a(): pass\n@action('b')\ndef b(): pass\n"

Listed = Callable[..., tuple[Result, Path]]


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listed:
    """Write a module and list its actions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def call(code: str, *options: str) -> tuple[Result, Path]:
        file = tmp_path / f"module_{token_hex(8)}.py"
        file.write_text(code)
        return CliRunner().invoke(app, ["actions", "--actions", file.stem, *options]), file

    return call


def test_one_action_of_a_module_can_be_listed(listed: Listed) -> None:
    result, _ = listed(_TWO, "--ref", "b", "--json")
    (definition,) = json.loads(result.stdout)
    assert definition["ref"] == "b"
    result, _ = listed(_TWO, "--ref", "c")
    assert (result.exit_code, result.stderr) == (
        2,
        "--ref c: these modules declare no such action, but a, b\n",
    )


def test_a_syntax_error_is_reported_with_its_location_and_nothing_else(listed: Listed) -> None:
    result, file = listed("x = 1\ndef f(:\n")
    assert result.exit_code == 1
    assert result.stderr.startswith(f'--actions {file.stem}: cannot be loaded\n  File "{file}", line 2\n')
    assert result.stderr.endswith("SyntaxError: invalid syntax\n")


def test_an_exception_of_a_module_is_reported_with_the_traceback_of_its_own_code(listed: Listed) -> None:
    result, file = listed("def f():\n    raise ValueError('my own')\nf()\n")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[:3] == [
        f"--actions {file.stem}: cannot be loaded",
        "Traceback (most recent call last):",
        f'  File "{file}", line 3, in <module>',
    ]
    assert result.stderr.endswith("ValueError: my own\n")
    assert "turnstile" not in result.stderr


def test_a_missing_library_is_reported_with_the_location_of_its_import(listed: Listed) -> None:
    result, file = listed("x = 1\nimport no_such_library\n")
    assert result.exit_code == 2
    assert result.stderr.endswith(f"No module named 'no_such_library' ({file}, line 2)\n")
