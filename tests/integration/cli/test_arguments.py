"""What people type is read as they mean it, or refused with an example."""

from typing import Any

import pytest
import typer

from turnstile.common.command_line import EXIT_USAGE, CommandFailed
from turnstile.executor.cli.arguments import duration, instant_text, read_assignments, read_object


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
def test_a_value_that_is_json_is_read_as_json_and_any_other_is_a_string(word: str, value: Any) -> None:
    assert read_assignments([word], where="parameter") == {"x": value}


@pytest.mark.parametrize("words", [["x"], ["=7"], ["x=1", "x=2"], ["x=\udcff"]])
def test_a_word_that_assigns_nothing_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(CommandFailed) as failed:
        read_assignments(words, where="parameter")
    assert failed.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("text", ['{"a":', "[1]", "7", '{"a": NaN}', ""])
def test_parameters_that_are_no_object_are_wrong_usage_and_an_example_is_shown(text: str) -> None:
    with pytest.raises(CommandFailed, match=r'^--parameters: .*"customer_id": 7') as failed:
        read_object(text, where="--parameters")
    assert failed.value.exit_code == EXIT_USAGE


def test_durations_are_read_as_everywhere() -> None:
    assert duration("1h30m") == 5400
    with pytest.raises(typer.BadParameter, match="'250ms'"):
        duration("soon")


@pytest.mark.parametrize("text", ["tomorrow", "2026-11-21", "2026-11-21T07:30:00"])
def test_an_instant_needs_a_zone(text: str) -> None:
    assert instant_text("2026-11-21T07:30:00Z") == "2026-11-21T07:30:00Z"
    with pytest.raises(typer.BadParameter, match="07:30:00Z"):
        instant_text(text)
