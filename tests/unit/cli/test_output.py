"""Output is valid JSON in every encoding, and values cannot control a terminal."""

import io
import json
import sys

import pytest
from rich.console import Console

from turnstile.executor.cli import output
from turnstile.executor.cli.client import Json
from turnstile.executor.cli.output import plain, print_fields, print_json, print_line, print_table, warn

_TEXT = "é \U0001f600 \x7f\x85\x9f"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_json_is_valid_in_every_encoding_of_stdout(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    out = io.BytesIO()
    stream = io.TextIOWrapper(out, encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    print_json({"text": _TEXT})
    stream.flush()
    printed = out.getvalue().decode(encoding)
    assert json.loads(printed) == {"text": _TEXT}
    assert not set(printed) & {chr(code) for code in range(0x7F, 0xA0)}
    assert ("\U0001f600" in printed) == (encoding == "utf-8")


_HOSTILE = "a\r\x1b[2J\x9bm\u202etxt\u2066\u2028\u200b"


def test_values_cannot_control_the_terminal_or_hide(capsys: pytest.CaptureFixture[str]) -> None:
    print_table({"ID": "id", "KEY": "id"}, [Json(id=_HOSTILE)], empty="none")
    print_fields([("key", _HOSTILE)])
    print_line(_HOSTILE)
    warn(_HOSTILE)
    print_json({"key": _HOSTILE})
    shown = capsys.readouterr()
    for line in (shown.out + shown.err).removesuffix("\n").split("\n"):
        assert line.isprintable(), ascii(line)
    assert json.loads(shown.out.splitlines()[-1]) == {"key": _HOSTILE}


def test_a_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table({"KEY": "key", "STATUS": lambda _: "failed"}, [Json(key="k\n7  completed")], empty="none")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_in_a_pipe_no_line_ends_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("id", 1), ("error", "e" * 500)])
    print_table({"ID": "id", "ERROR": "error"}, [Json(id=n, error="e" * n * 500) for n in (0, 1)], empty="")
    assert [len(line) for line in capsys.readouterr().out.splitlines()] == [8, 507, 9, 1, 504]


def test_a_terminal_shows_of_a_long_column_what_fits_and_a_pipe_all_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Json(id=1, error="no such field " * 20)]
    print_table({"ID": "id", "ERROR": "error"}, rows, empty="", cut="ERROR")
    assert rows[0]["error"].strip() in capsys.readouterr().out
    monkeypatch.setattr(output, "console_for_pipes", lambda: Console(width=80, force_terminal=True))
    print_table({"ID": "id", "ERROR": "error"}, rows, empty="", cut="ERROR")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].rstrip().endswith("…")


def test_text_in_any_script_is_unchanged() -> None:
    text = "señor مرحبا 👩\u200d💻 数\n\tnext"
    assert plain(text) == text
