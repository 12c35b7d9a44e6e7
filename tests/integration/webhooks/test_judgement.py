"""What an answer means."""

import pytest

from turnstile.common.domain.retries import RetryPolicy
from turnstile.executor.webhooks.judgement import Answer, Judgement, judge

POLICY = RetryPolicy(max_attempts=4, delay_seconds=5.0, max_delay_seconds=12.0, jitter=0.2)


def judged(answer: Answer, attempts: int = 1, spread: float = 0.0) -> Judgement:
    return judge(answer, attempts=attempts, policy=POLICY, spread=spread)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_any_2xx_is_delivered(status: int) -> None:
    assert judged(Answer(status=status)).state == "delivered"


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422, 425, 499])
def test_a_4xx_is_final(status: int) -> None:
    assert judged(Answer(status=status)).state == "failed"


@pytest.mark.parametrize("status", [None, 100, 301, 302, 408, 429, 500, 502, 503, 504, 599])
def test_anything_else_is_tried_again(status: int | None) -> None:
    assert judged(Answer(status=status)) == Judgement(state="pending", delay_seconds=5.0)


def test_the_waits_double_up_to_the_longest_and_are_spread() -> None:
    down = Answer(status=503)
    assert [judged(down, attempts).delay_seconds for attempts in (1, 2)] == [5.0, 10.0]
    assert judged(down, attempts=3, spread=1).delay_seconds == 12.0
    assert (judged(down, spread=-1).delay_seconds, judged(down, spread=1).delay_seconds) == (4.0, 6.0)


def test_the_last_attempt_fails() -> None:
    assert judged(Answer(status=503), attempts=4).state == "failed"
    # Replicas that died after a POST have counted too: the one that notes it decides.
    assert judged(Answer(status=503), attempts=9).state == "failed"
    assert judged(Answer(status=200), attempts=9).state == "delivered"


def test_a_longer_wait_is_granted_up_to_a_day_and_a_shorter_one_is_not() -> None:
    assert judged(Answer(status=429, retry_after_seconds=60.0)).delay_seconds == 60.0
    assert judged(Answer(status=429, retry_after_seconds=1.0)).delay_seconds == 5.0
    assert judged(Answer(status=503, retry_after_seconds=1e9)).delay_seconds == 86_400.0


def test_what_another_try_cannot_help_is_given_up_at_once() -> None:
    assert judged(Answer(error="refused", is_final=True)).state == "failed"
