"""What an action returns is kept only if whoever is told of it can read it too."""

import pytest

from turnstile.common.domain.outcomes import Completed, Failed
from turnstile.worker.judgement import judge_text, judge_value

BYTES_MAX = 1024 * 1024


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def refused(judged: Completed | Failed) -> str:
    assert isinstance(judged, Failed)
    assert (judged.failure.type, judged.retryable) == ("InvalidResult", False)
    return judged.failure.message


@pytest.mark.parametrize("levels", [197, 200, 201, 230, 254])
def test_a_result_too_deep_to_be_read_in_a_message_or_a_page_fails_for_good(levels: int) -> None:
    assert "deeper than 196 levels" in refused(judge_value(nested(levels), BYTES_MAX))
    assert "deeper than 196 levels" in refused(judge_text(b"[" * levels + b"1" + b"]" * levels, BYTES_MAX))


@pytest.mark.parametrize(("sign", "digits"), [(1, 4301), (-1, 4301), (1, 5000)])
def test_an_integer_too_long_to_be_read_fails_for_good(sign: int, digits: int) -> None:
    value = {"x": [sign * 10 ** (digits - 1)], "word": "Infinity"}
    assert "4300 digits; give it as a string" in refused(judge_value(value, BYTES_MAX))


def test_the_deepest_result_and_the_longest_integer_are_kept() -> None:
    assert judge_value(nested(196), BYTES_MAX) == Completed(result_json="[" * 196 + "1" + "]" * 196)
    assert judge_value(-(10**4299), BYTES_MAX) == Completed(result_json="-1" + "0" * 4299)


def test_a_text_that_only_looks_like_json_between_brackets_is_refused() -> None:
    refused(judge_text(b"1], [2", BYTES_MAX))
