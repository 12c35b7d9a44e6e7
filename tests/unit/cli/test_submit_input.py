"""Arguments and JSON Lines of `executor submit`: parsed, bounded, or rejected with an example."""

import io
import json
from typing import Any

import pytest
import typer

from turnstile.common.cli import CommandFailed
from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.arguments import PRIORITY, instant_text, read_assignments, read_parameters
from turnstile.executor.cli.client import Api, ApiRefused, Json
from turnstile.executor.cli.submit import LIST_BYTES_MAX, LIST_MAX, Line, read_lines, send


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("x=7", 7),
        ("x=1.5", 1.5),
        ("x=true", True),
        ("x=null", None),
        ('x={"a": [1]}', {"a": [1]}),
        ('x="7"', "7"),
        ("x=hello", "hello"),
        ("x=", ""),
        ("x=a=b", "a=b"),
        ("x=007", "007"),
        ("x=NaN", "NaN"),
        ("x={not json", "{not json"),
    ],
)
def test_a_value_that_is_valid_json_is_parsed_and_any_other_is_a_string(word: str, value: Any) -> None:
    assert read_assignments([word], where="parameter") == {"x": value}


@pytest.mark.parametrize("words", [["x"], ["=7"], ["x=1", "x=2"], ["x=\udcff"]])
def test_an_invalid_assignment_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(CommandFailed) as failed:
        read_assignments(words, where="parameter")
    assert failed.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("text", ['{"a":', "[1]", "7", '{"a": NaN}', ""])
def test_parameters_that_are_no_object_are_wrong_usage_with_an_example(text: str) -> None:
    with pytest.raises(CommandFailed, match=r'^--parameters: .*"customer_id": 7') as failed:
        read_parameters(text)
    assert failed.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("text", ["tomorrow", "2026-11-21", "2026-11-21T07:30:00"])
def test_an_instant_needs_a_zone(text: str) -> None:
    assert instant_text("2026-11-21T07:30:00Z") == "2026-11-21T07:30:00Z"
    with pytest.raises(typer.BadParameter, match="07:30:00Z"):
        instant_text(text)


@pytest.mark.parametrize(
    "text", ["0", "6", "-1", "high", "true", "2.5", "null", "", " 2", "02", "²", "1" * 5000]
)
def test_a_priority_is_a_number_from_1_to_5(text: str) -> None:
    assert PRIORITY.parser is not None
    assert [PRIORITY.parser(each) for each in "12345"] == [1, 2, 3, 4, 5]
    with pytest.raises(typer.BadParameter, match=r"expected a whole number from 1 \(first\) to 5 \(last\)"):
        PRIORITY.parser(text)


def lines_of(text: str | bytes, *, key: str | None = None, **defaults: object) -> list[Line]:
    stream = io.BytesIO(text.encode() if isinstance(text, str) else text)
    return list(read_lines(stream, defaults=defaults, key=key))


def test_a_line_gets_the_options_and_a_key_of_its_own_number() -> None:
    text = '{}\n\n  \n{"ttl": 5, "idempotency_key": "mine"}\n{}'
    lines = lines_of(text, key="run", action_ref="a", ttl=1)
    assert [line.number for line in lines] == [1, 4, 5]
    assert [json.loads(line.body) for line in lines] == [
        {"action_ref": "a", "ttl": 1, "idempotency_key": "run:1"},
        {"action_ref": "a", "ttl": 5, "idempotency_key": "mine"},
        {"action_ref": "a", "ttl": 1, "idempotency_key": "run:5"},
    ]


def test_an_invalid_line_is_rejected_with_its_number_and_the_others_are_not() -> None:
    found = lines_of(b'{}\nnot json\n[1]\n"\xff"\n{"x": NaN}\n{}')
    assert [(line.number, None if line.refusal is None else line.refusal["code"]) for line in found] == [
        (1, None),
        *((number, "invalid_message") for number in (2, 3, 4, 5)),
        (6, None),
    ]


def test_an_oversized_line_is_rejected_and_the_next_one_is_read() -> None:
    found = lines_of(b'{"x": "' + b"x" * (2 * LIST_BYTES_MAX) + b'"}\n{}')
    assert [(line.number, line.refusal is None) for line in found] == [(1, False), (2, True)]


def test_a_list_that_is_rejected_as_a_whole_names_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Json(items=[Json(id=number) for number in range(LIST_MAX)])])

    def post(*_: object) -> Json:
        for answer in answers:
            return answer
        raise ApiRefused({"code": "unauthorized", "detail": "invalid token"})

    monkeypatch.setattr(Api, "post", post)
    sent = send(Api("http://127.0.0.1:1", ""), lines_of("{}\n" * (LIST_MAX + 2)))
    assert len(next(sent)) == LIST_MAX
    with pytest.raises(
        ApiRefused, match="unauthorized: invalid token\nlines 501 to 502: rejected as a whole"
    ):
        next(sent)
