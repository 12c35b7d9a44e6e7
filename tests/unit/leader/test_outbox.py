"""What memory keeps of stored events is bounded, and all of them are published in order."""

import json
from typing import Any

from turnstile.executor.leader.outbox import KEPT_MAX, Outbox
from turnstile.executor.leader.records import EventRow


def body(number: int) -> dict[str, Any]:
    return {"execution_id": number, "result": None}


def test_memory_keeps_a_bounded_part_and_reads_the_rest_in_order() -> None:
    outbox = Outbox([])
    table: dict[int, EventRow] = {}
    for start in range(0, 3 * KEPT_MAX, 1000):
        outbox.store(body(number) for number in range(start, start + 1000))
        table |= {row.id: row for row in outbox.take_new()}
    assert len(table) == 3 * KEPT_MAX
    assert len(outbox.rows) == KEPT_MAX
    published: list[int] = []
    while rows := outbox.first():
        published += [row.id for row in rows]
        outbox.confirm(rows)
        if not outbox.rows and outbox.has_unread:
            outbox.add(row for key, row in table.items() if key > outbox.read_id)
    assert published == sorted(table)
    assert outbox.take_confirmed() == published
    assert not outbox.has_unread


def test_an_event_of_a_turn_that_has_not_committed_is_read_later() -> None:
    outbox = Outbox([EventRow(id=1, body=b"{}")], newest_id=2)
    outbox.confirm(outbox.first())
    outbox.store([body(3)])
    (new,) = outbox.take_new()
    # The read of what memory lacks does not see it yet.
    outbox.add([EventRow(id=2, body=b"{}")])
    outbox.confirm(outbox.first())
    assert outbox.has_unread
    outbox.add([new])
    assert outbox.first() == [new]


def test_large_events_are_kept_one_by_one() -> None:
    large = b"x" * (20 * 1024 * 1024)
    outbox = Outbox([EventRow(id=number, body=large) for number in (1, 2)], newest_id=2)
    assert [row.id for row in outbox.first()] == [1]
    assert (outbox.has_unread, outbox.read_id) == (True, 1)


def test_ids_go_on_behind_what_is_stored() -> None:
    outbox = Outbox([EventRow(id=4, body=b"{}")], newest_id=9)
    outbox.store([body(1)])
    assert [row.id for row in outbox.take_new()] == [10]


def test_a_result_that_no_event_carries_is_not_stored() -> None:
    outbox = Outbox([], result_bytes_max=4)
    outbox.store({**body(number), "result": result} for number, result in enumerate(['"ab"', '"é"', '"éé"']))
    assert [json.loads(row.body)["result"] for row in outbox.take_new()] == ['"ab"', '"é"', None]
