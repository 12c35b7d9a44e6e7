"""A result is stored only if every reader of messages and pages can parse it."""

import pytest

from turnstile.worker.core.outcomes import Completed, Failed
from turnstile.worker.outcome import outcome_of_text, outcome_of_value

BYTES_MAX = 1024 * 1024


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def refused(outcome: Completed | Failed) -> str:
    assert isinstance(outcome, Failed)
    assert (outcome.failure.type, outcome.retryable) == ("InvalidResult", False)
    return outcome.failure.message


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [float("nan"), {"x": [float("inf")]}, "a\0b", object(), "\ud800", LOOP],
    ids=["nan", "inf", "NUL", "object", "surrogate", "recursive"],
)
def test_a_result_that_cannot_be_stored_as_json_is_not_retried(value: object) -> None:
    refused(outcome_of_value(value, BYTES_MAX))


@pytest.mark.parametrize(
    ("value", "result"),
    [("NaN and Infinity", '"NaN and Infinity"'), ("\\u0000", '"\\\\u0000"'), (None, "null"), ({1}, "[1]")],
)
def test_a_result_that_only_looks_invalid_is_stored(value: object, result: str) -> None:
    assert outcome_of_value(value, BYTES_MAX) == Completed(result_json=result)


def test_a_result_above_the_limit_is_not_retried_and_the_error_has_both_sizes() -> None:
    outcome = outcome_of_value("x" * 200_000, 100_000)
    assert isinstance(outcome, Failed)
    assert (outcome.failure.type, outcome.retryable) == ("ResultTooLarge", False)
    assert "200002 bytes, the limit is 100000" in outcome.failure.message


@pytest.mark.parametrize("levels", [197, 200, 201, 230, 254])
def test_a_result_nested_too_deeply_fails_and_is_not_retried(levels: int) -> None:
    assert "deeper than 196 levels" in refused(outcome_of_value(nested(levels), BYTES_MAX))
    assert "deeper than 196 levels" in refused(
        outcome_of_text(b"[" * levels + b"1" + b"]" * levels, BYTES_MAX)
    )


@pytest.mark.parametrize(("sign", "digits"), [(1, 4301), (-1, 4301), (1, 5000)])
def test_an_integer_with_too_many_digits_fails_and_is_not_retried(sign: int, digits: int) -> None:
    value = {"x": [sign * 10 ** (digits - 1)], "word": "Infinity"}
    assert "4300 digits; give it as a string" in refused(outcome_of_value(value, BYTES_MAX))


def test_the_deepest_result_and_the_longest_integer_are_stored() -> None:
    assert outcome_of_value(nested(196), BYTES_MAX) == Completed(result_json="[" * 196 + "1" + "]" * 196)
    assert outcome_of_value(-(10**4299), BYTES_MAX) == Completed(result_json="-1" + "0" * 4299)


def test_text_that_is_json_only_between_brackets_is_refused() -> None:
    refused(outcome_of_text(b"1], [2", BYTES_MAX))
