"""Lines of a bulk submit: read one by one, bounded, each with its number."""

import io
import json

from executor.cli.bulk import LIST_BYTES_MAX, LIST_MAX, Line, _lists, read_lines


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
