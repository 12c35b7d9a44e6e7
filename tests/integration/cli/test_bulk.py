"""Lines of a bulk submit: read one by one, bounded, each with its number."""

import io
import json

import pytest

from turnstile.executor.cli.bulk import LIST_BYTES_MAX, LIST_MAX, Line, _lists, read_lines, send
from turnstile.executor.cli.connection import Api, ApiRefused, Json


def lines_of(text: str | bytes, *, key: str | None = None, **defaults: object) -> list[Line]:
    stream = io.BytesIO(text.encode() if isinstance(text, str) else text)
    return list(read_lines(stream, defaults=defaults, key=key))


def test_blank_lines_are_skipped_and_still_counted() -> None:
    assert [line.number for line in lines_of('{"a": 1}\n\n  \n{"a": 2}')] == [1, 4]


def test_what_a_line_leaves_out_is_filled_in_and_what_it_says_stays() -> None:
    bodies = [json.loads(line.body) for line in lines_of('{}\n{"ttl": 5}', action_ref="a", ttl=1)]
    assert bodies == [{"action_ref": "a", "ttl": 1}, {"action_ref": "a", "ttl": 5}]


def test_each_line_gets_a_key_of_its_own_unless_it_has_one() -> None:
    bodies = [json.loads(line.body) for line in lines_of('{}\n{"idempotency_key": "mine"}\n{}', key="run")]
    assert [body["idempotency_key"] for body in bodies] == ["run:1", "mine", "run:3"]


def test_a_line_that_is_no_object_is_refused_with_its_number_and_the_others_are_not() -> None:
    found = lines_of(b'{}\nnot json\n[1]\n"\xff"\n{"x": NaN}\n{}')
    assert [(line.number, None if line.refusal is None else line.refusal["code"]) for line in found] == [
        (1, None),
        *((number, "invalid_message") for number in (2, 3, 4, 5)),
        (6, None),
    ]


def test_a_line_without_end_is_refused_and_the_next_one_is_read() -> None:
    found = lines_of(b'{"x": "' + b"x" * (2 * LIST_BYTES_MAX) + b'"}\n{}')
    assert [(line.number, line.refusal is None) for line in found] == [(1, False), (2, True)]


def test_lists_keep_the_order_and_are_bounded_in_items_and_bytes() -> None:
    many = [Line(number=number, body=b"{}") for number in range(2 * LIST_MAX + 1)]
    assert [len(chunk) for chunk in _lists(many)] == [LIST_MAX, LIST_MAX, 1]
    assert [line.number for chunk in _lists(many) for line in chunk] == list(range(2 * LIST_MAX + 1))
    large = [Line(number=number, body=b"x" * (LIST_BYTES_MAX // 2)) for number in range(5)]
    assert [len(chunk) for chunk in _lists(large)] == [2, 2, 1]


def test_a_list_that_is_refused_as_a_whole_names_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Json(items=[Json(id=number) for number in range(LIST_MAX)])])

    def post(*_: object) -> Json:
        for answer in answers:
            return answer
        raise ApiRefused({"code": "unauthorized", "detail": "the token is not known"})

    monkeypatch.setattr(Api, "post", post)
    sent = send(Api("http://127.0.0.1:1", ""), lines_of("{}\n" * (LIST_MAX + 2)))
    assert len(next(sent)) == LIST_MAX
    with pytest.raises(
        ApiRefused, match="unauthorized: the token is not known\nlines 501 to 502: refused as a whole"
    ):
        next(sent)
