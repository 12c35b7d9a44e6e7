"""Reports: in order, kept until committed, sent again whenever one may have been lost."""

from collections.abc import Callable

import pytest

from tests.unit.worker_core.world import CONFIG, World, grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import AttemptEnded, Heard, Welcome
from turnstile.worker.core.reporter import Outbox
from turnstile.worker.core.session import Session


def end(execution_id: int, result: bytes = b"1") -> AttemptEnded:
    return AttemptEnded(
        execution_id=execution_id, grant=grant(execution_id), status=Status.COMPLETED, result=result
    )


def outbox_of(count: int) -> Outbox:
    outbox = Outbox(CONFIG)
    for each in range(1, count + 1):
        outbox.add(end(each))
    return outbox


SESSION = Session("w", "s")


def numbers(outbox: Outbox) -> list[int]:
    return [each.number for each in outbox.take(SESSION)]


def test_reports_are_numbered_and_taken_once_in_order() -> None:
    outbox = outbox_of(3)
    assert numbers(outbox) == [1, 2, 3]
    assert numbers(outbox) == []
    assert not outbox.pending.is_set()
    outbox.add(end(4))
    assert numbers(outbox) == [4]


def test_committed_reports_are_forgotten_and_the_rest_says_from_where_it_is_kept() -> None:
    outbox = outbox_of(3)
    outbox.take(SESSION)
    outbox.committed(2, 0.0)
    outbox.repeat()
    (report,) = outbox.take(SESSION)
    assert (report.number, report.kept_from) == (3, 3)
    outbox.committed(3, 0.0)
    assert outbox.empty.is_set()
    assert outbox.held() == []


def test_a_watermark_that_goes_back_or_beyond_changes_nothing_more() -> None:
    outbox = outbox_of(3)
    outbox.committed(2, 0.0)
    outbox.committed(1, 0.0)
    assert numbers(outbox) == [3]
    outbox.committed(99, 0.0)
    outbox.add(end(4))
    assert numbers(outbox) == [4]


def test_a_commit_of_what_was_not_taken_again_yet_skips_it() -> None:
    outbox = outbox_of(4)
    outbox.take(SESSION)
    outbox.repeat()
    outbox.committed(3, 0.0)
    assert numbers(outbox) == [4]


def test_a_repetition_during_a_write_is_not_forgotten_by_its_confirm() -> None:
    outbox = outbox_of(2)
    outbox.take(SESSION)
    outbox.repeat()
    outbox.published(0.0)
    assert outbox.pending.is_set()
    assert numbers(outbox) == [1, 2]


def test_a_write_is_bounded_in_bytes_and_always_holds_one_report() -> None:
    outbox = Outbox(CONFIG)
    for each in range(1, 4):
        outbox.add(end(each, b"x" * 2 * CONFIG.batch_bytes_max))
    assert [numbers(outbox) for _ in range(4)] == [[1], [2], [3], []]


def test_what_is_not_committed_for_long_is_sent_again_while_the_leader_answers_ever_more_rarely() -> None:
    outbox = outbox_of(1)
    outbox.take(SESSION)
    outbox.published(0.0)
    again = []
    for at in range(1, 100):
        outbox.committed(0, float(at))
        if numbers(outbox):
            again.append(at)
    assert again == [2, 6, 14, 30, 62]
    outbox.add(end(2))
    outbox.committed(1, 100.0)
    outbox.take(SESSION)
    outbox.committed(1, 101.9)
    assert numbers(outbox) == []
    outbox.committed(1, 102.0)
    assert numbers(outbox) == [2]


@pytest.mark.parametrize("committed", [0, 1])
def test_the_bytes_of_kept_reports_are_counted_until_they_are_committed(committed: int) -> None:
    outbox = Outbox(CONFIG)
    outbox.add(end(1, b"x" * CONFIG.kept_bytes_max))
    outbox.committed(committed, 0.0)
    assert outbox.has_room is bool(committed)


def test_ended_grants_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstile.worker.core.reporter._OVER_MAX", 2)
    outbox = outbox_of(3)
    outbox.committed(3, 0.0)
    assert [outbox.answer(each, grant(each)) for each in (1, 2, 3)] == [False, True, True]


# With a broker.


async def test_many_ends_go_with_one_write(make_world: Callable[..., World]) -> None:
    world = await make_world(concurrency=200).serve()
    world.broker.confirm_seconds = 0.02
    await world.offer(*range(1, 101))
    for run in world.runner.runs:
        run.end()
        await world.passes(0.0001)
    await world.passes(1)
    assert len(world.ends()) == 100
    assert len(world.broker.writes) < 10


async def test_reports_without_an_answer_are_sent_again(world: World) -> None:
    world.broker.is_silent, world.is_committing = True, False
    await world.offer(1, 2)
    await world.end(2)
    await world.end(1)
    await world.passes(2)
    world.broker.is_silent = False
    await world.passes(1)
    copies = [each.number for each in world.broker.reports]
    assert copies.count(max(copies)) > 1
    assert world.ends() == [(2, "completed"), (1, "completed")]


async def test_reports_wait_for_the_broker_and_arrive_in_order(world: World) -> None:
    await world.offer(1, 2, 3)
    world.broker.is_down = True
    for each in (3, 1, 2):
        await world.end(each)
    await world.passes(10)
    assert world.ends() == []
    world.broker.is_down = False
    await world.passes(1)
    assert world.ends() == [(3, "completed"), (1, "completed"), (2, "completed")]


async def test_confirmed_reports_that_were_lost_are_sent_again(world: World) -> None:
    await world.offer(1)
    world.broker.is_losing = True
    await world.end(1)
    world.broker.is_losing = False
    assert world.ends() == []
    await world.passes(6)
    assert world.ends() == [(1, "completed")]


@pytest.mark.parametrize("of", ["epoch", "welcome"])
async def test_a_new_epoch_or_welcome_repeats_everything_from_the_first_uncommitted_one(
    world: World, of: str
) -> None:
    world.is_committing = False
    await world.offer(1, 2)
    await world.end(1)
    await world.end(2)
    before = len(world.broker.reports)
    if of == "epoch":
        world.epoch = 2
        world.send(Heard(heartbeat=0, committed=world.committed))
    else:
        world.send(Welcome())
    await world.passes()
    first = world.committed + 1
    again = [each.number for each in world.broker.reports[before:]]
    assert again == list(range(first, first + len(again)))
    assert len(again) >= 2


async def test_nothing_is_sent_again_while_no_leader_answers(world: World) -> None:
    world.is_committing = world.is_answering = world.is_welcoming = False
    await world.offer(1)
    await world.end(1)
    count = len(world.broker.reports)
    await world.passes(600)
    assert len(world.broker.reports) == count


async def test_every_report_says_from_which_number_on_they_are_kept(world: World) -> None:
    for each in (1, 2, 3):
        await world.offer(each)
        await world.end(each)
        await world.passes(4)
    assert all(each.kept_from == each.number for each in world.broker.reports)
