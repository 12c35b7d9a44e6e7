"""`turnstile dev` without servers: what it prints, what it watches, and what it refuses."""

import fcntl
import io
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnstile.cli import app
from turnstile.dev import Terminal, is_code

WARNING = "09:14:02.517 WARNING worker   action_differs action_ref=a.b"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, **environment: str) -> str:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream)
    terminal = Terminal.of_this_process()
    terminal.show("worker", [WARNING])
    terminal.say("Stopping\nnow")
    terminal.check()
    return stream.getvalue()


def test_each_line_is_under_the_name_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, io.StringIO(), TERM="xterm")
    assert text == f"worker   | {WARNING}\ndev      | Stopping\ndev      | now\n"


def test_a_terminal_has_colours_unless_no_color_is_set_or_it_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = shown(monkeypatch, Screen(), TERM="xterm")
    assert f"\x1b[33m{WARNING}\x1b[0m" in text
    for environment in ({"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}, {}):
        assert "\x1b[" not in shown(monkeypatch, Screen(), **environment)


def test_a_closed_output_is_reported_once_where_it_can_be_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokenPipeError):
        shown(monkeypatch, Closed())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("reports.py", True),
        ("shop/actions/render.py", True),
        ("reports.pyc", False),
        ("notes.txt", False),
        (".venv/lib/x.py", False),
        ("venv/lib/x.py", False),
        ("shop/__pycache__/x.py", False),
        ("data/postgresql/x.py", False),
    ],
)
def test_only_code_of_the_project_is_watched(tmp_path: Path, path: str, expected: bool) -> None:
    # The folder of the project may itself be below a hidden one.
    folder = tmp_path / ".work" / "project"
    assert is_code(folder / path, folder=folder, ignored=folder / "data") is expected


def test_a_folder_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".turnstile"
    folder.mkdir()
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = CliRunner().invoke(app, ["dev", "--actions", "reports"])
    assert (result.exit_code, result.stderr) == (
        2,
        ".turnstile is in use by another `turnstile dev`; end that one, or name another folder with"
        " --data-folder\n",
    )


def test_without_watchfiles_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "turnstile.dev")
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    result = CliRunner().invoke(app, ["dev", "--actions", "reports"])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "needs the extra: pip install 'turnstile-scheduler[dev]' (watchfiles is missing)" in result.stderr
