"""A stored dead letter of a worker shows no secret of that worker."""

from tests.unit.leader.test_door import message
from turnstile.executor.dead_letters.message import CUT_BODY_BYTES, read_dead_letter


def test_the_secret_of_a_worker_is_left_out() -> None:
    body = b'{"worker_id": "w", "secret": "abc\\"d", "session": 1}'
    letter = read_dead_letter(
        message(body, kind="worker.reports", key="executor.completions"), body_bytes_max=999
    )
    assert letter.body == b'{"worker_id": "w", "secret": "", "session": 1}'


def test_also_where_the_body_is_cut_within_it() -> None:
    begin = b'{"note": "' + b"x" * (CUT_BODY_BYTES - 40) + b'", "secret": "'
    body = begin + b"s" * 1000 + b'"}'
    letter = read_dead_letter(
        message(body, kind="worker.hello", key="executor.heartbeats"), body_bytes_max=999
    )
    assert letter.body == begin + b'"'


def test_what_a_client_calls_a_secret_is_kept() -> None:
    body = b'{"action_ref": "a", "parameters": {"secret": "abc"}}'
    assert read_dead_letter(message(body), body_bytes_max=999).body == body
