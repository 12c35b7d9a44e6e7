"""Answers to questions: every page is bounded and complete, and an answer survives its way as JSON (P10)."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

from turnstile.common.domain.states import Status
from turnstile.executor.questions.answering import answer, live_execution
from turnstile.executor.questions.changes import ChangeLog
from turnstile.executor.questions.estimate import Durations
from turnstile.executor.questions.explain import Bound, counts_by_bound, members_at, order_at
from turnstile.executor.questions.gates import Steps, places_at
from turnstile.executor.questions.protocol import (
    EXPLAINED_MAX,
    PAGE_MAX,
    Answered,
    BoundsOf,
    Changes,
    ChangesPage,
    Execution,
    Explain,
    Gates,
    InvalidQuestion,
    LeaderState,
    Leading,
    Live,
    PoolQueue,
    Question,
    QueueOf,
    ResourceQueue,
    Stats,
    Stops,
    Unanswered,
    WorkerOf,
    Workers,
    WorkerState,
    check,
    pack_answer,
    pack_question,
    pack_unanswered,
    read_question,
    read_reply,
)
from turnstile.executor.questions.use import MINUTES, UseHistory
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.definitions import Action, KeySettings, Pool, Resource, Use
from turnstile.executor.queue_manager.inputs import (
    Admit,
    Cancel,
    DefineAction,
    DefinePool,
    DefineResource,
    DeleteAction,
    Ended,
    Input,
    SetKey,
    Started,
    WorkerChanged,
)
from turnstile.executor.queue_manager.state import State

A = TypeVar("A")


class Installation:
    """A state, driven by inputs, as the leader knows it; questions go their whole way as JSON."""

    def __init__(self, *inputs: Input) -> None:
        self.state = State()
        self.durations = Durations()
        self.changes = ChangeLog("1")
        self.uses = UseHistory()
        self.now = 1000.0
        self.turn(*inputs)

    def turn(self, *inputs: Input, refs: Iterable[str] = ()) -> Decisions:
        self.now += 1.0
        out = decide(self.state, inputs, self.now)
        self.durations.learn(out)
        self.changes.note(self.state, out, refs, self.now)
        self.uses.note(self.state, self.now)
        return out

    def admit(self, ref: str, *, key: str = "", priority: int = 3, count: int = 1) -> list[int]:
        out = self.turn(*[Admit(action_ref=ref, key=key, priority=priority)] * count)
        return [each.id for each in out.admitted]

    def end(self, execution_id: int) -> None:
        grant = self.state.executions[execution_id].grant
        assert grant is not None
        self.turn(Ended(execution_id=execution_id, grant=grant, status=Status.COMPLETED))

    def end_after(self, seconds: float, execution_id: int) -> None:
        """End an execution that ran for so long, as its worker says."""
        grant = self.state.executions[execution_id].grant
        assert grant is not None
        self.turn(
            Ended(
                execution_id=execution_id, grant=grant, status=Status.COMPLETED, started_at=self.now,
                completed_at=self.now + seconds,
            )
        )  # fmt: skip

    def workers(self) -> Sequence[WorkerState]:
        return [
            WorkerState(
                worker_id=each.id, name=each.id, session=1, pools=each.pools, actions=None,
                concurrency=each.concurrency, running=0, is_taking=each.is_taking,
                is_draining=False, is_answered=True, lease_seconds=15.0, lease_left_seconds=10.0,
                heard_seconds_ago=None, registered_at=1000.0, about={"pid": 7},
            )
            for each in self.state.workers.values()
        ]  # fmt: skip

    def leader(self) -> LeaderState:
        return LeaderState(
            executor_id="e", epoch=7, turn=1, led_seconds=1.0, has_broker=True, actions=1, waiting=0,
            at_workers=0, delayed=0, workers=1, unfinished=False, events_stored=0, batches_unpublished=0,
            parameters_bytes=0, messages_refused=0,
        )  # fmt: skip

    def monotonic(self) -> float:
        return self.now

    def ask(self, question: Question[A]) -> A:
        body = whole(answer(read_question(pack_question(question)), self))
        reply = read_reply(question, pack_answer(Answered(epoch=7, turn=1, at=self.now, body=body)))
        assert isinstance(reply, Answered), reply
        assert reply.body == body
        return reply.body


def whole(steps: Steps[object]) -> object:
    """Return an answer after all its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def installation(*, slots: int = 1, concurrency: int = 10) -> Installation:
    return Installation(
        DefineAction(action=Action(ref="a", max_concurrent=slots)),
        WorkerChanged(worker_id="w", pools=frozenset({"default"}), concurrency=concurrency),
    )


def test_what_waits_is_explained_beside_what_runs_and_what_has_ended() -> None:
    has = installation()
    ended, first, second = has.admit("a", count=3)
    has.end(ended)
    named = tuple(Execution(id=each, action_ref="a") for each in (ended, first, second))
    over, running, waiting = has.ask(Explain(executions=named, with_estimate=True))
    assert over.live is None
    assert over.explanation is None
    assert running.live is not None
    assert (running.live.status, running.live.worker_id) == (Status.SCHEDULED, "w")
    assert waiting.live is not None
    assert (waiting.live.status, waiting.live.expires_at) == (Status.QUEUED, None)
    assert waiting.explanation is not None
    assert (waiting.explanation.position, waiting.explanation.queue_length) == (1, 1)
    assert waiting.explanation.waiting_on is not None
    assert waiting.explanation.waiting_on.reason == "limit"
    assert [each.id for each in waiting.explanation.waiting_on.holders] == [first]
    assert waiting.estimate is not None


def test_what_lives_is_listed_with_its_worker_and_what_has_ended_is_not() -> None:
    has = installation()
    ended, running, waiting = has.admit("a", count=3)
    has.end(ended)
    grant = has.state.executions[running].grant
    assert grant is not None
    has.turn(
        Started(execution_id=running, grant=grant, at=1003.5),
        Cancel(execution_id=running, reason="no more", action_ref="a"),
    )
    requested_at = has.state.now
    found = has.ask(
        Live(executions=tuple(Execution(id=each, action_ref="a") for each in (ended, running, waiting, 99)))
    )
    assert [each and each.status for each in found] == [None, Status.RUNNING, Status.QUEUED, None]
    assert found[1] is not None
    assert (found[1].worker_id, found[1].started_at, found[1].cancel_reason) == ("w", 1003.5, "no more")
    assert found[1].cancel_requested_at == requested_at


def test_what_stops_each_action_is_named_with_the_key_that_other_keys_starve() -> None:
    has = Installation(
        DefineAction(action=Action(ref="keyed", max_concurrent_total=2)),
        DefineAction(action=Action(ref="limited", max_concurrent=1)),
        DefineAction(action=Action(ref="paused", paused=True)),
        DefineAction(action=Action(ref="unserved", pool="gpu", max_concurrent=1)),
        WorkerChanged(worker_id="w", pools=frozenset({"default"}), concurrency=10),
    )
    has.admit("keyed", key="big", count=4)
    since = has.now + 1.0
    has.admit("keyed", key="small")
    for ref in ("limited", "paused", "unserved"):
        has.admit(ref, count=3)
    found = {each.action_ref: each for each in has.ask(Stops()).actions}
    assert {ref: (each.reason, each.waiting) for ref, each in found.items()} == {
        "keyed": ("total", 3), "paused": ("paused", 3), "unserved": ("no_worker", 3),
    }  # fmt: skip
    starved = found["keyed"].starved
    assert starved is not None
    assert (starved.key, starved.oldest_enqueued_at) == ("small", since)
    assert (starved.holder, starved.holder_slots) == ("big", 2)


def test_units_that_are_held_by_what_waits_for_a_later_resource_lie_idle() -> None:
    uses = (Use(resource="desk"), Use(resource="licence"))
    has = Installation(
        DefineResource(resource=Resource(name="desk", capacity=4, rank=1)),
        DefineResource(resource=Resource(name="licence", capacity=1, rank=2)),
        DefineAction(action=Action(ref="a", uses=uses)),
        WorkerChanged(worker_id="w", pools=frozenset({"default"}), concurrency=10),
    )
    has.admit("a", count=6)
    (idle,) = has.ask(Stops()).idle
    assert (idle.resource, idle.held_waiting, idle.reason, idle.later) == ("desk", 3, "resource", "licence")


def test_counts_of_all_actions_come_in_pages() -> None:
    has = Installation(*(DefineAction(action=Action(ref=f"a{n}")) for n in range(5)))
    has.admit("a3", count=2)
    first = has.ask(Stats(limit=3))
    assert [each.action_ref for each in first.items] == ["a0", "a1", "a2"]
    assert first.next_ref == "a2"
    second = has.ask(Stats(after_ref="a2", limit=3))
    assert [(each.action_ref, each.stats and each.stats.queue_length) for each in second.items] == [
        ("a3", 2),
        ("a4", 0),
    ]
    assert second.next_ref is None
    unknown = has.ask(Stats(action_refs=("nothing",)))
    assert unknown.items[0].stats is None


@pytest.mark.parametrize("keys", [1, 3, 20])
def test_a_queue_is_read_page_by_page_in_its_order_whatever_leaves_meanwhile(keys: int) -> None:
    has = installation(slots=0)
    key_of: dict[int, str] = {}
    for number in range(100):
        key = str(number % keys)
        (added,) = has.admit("a", key=key, priority=2 + number % 2)
        key_of[added] = key
    read: list[tuple[int, int]] = []
    after = (0, 0)
    while True:
        page = has.ask(QueueOf(action_ref="a", after=after, limit=7))
        assert page is not None
        read += [(each.priority, each.id) for each in page.items]
        if page.next is None:
            break
        after = page.next
        # What was read already leaves, also the one behind which the next page begins.
        priority, left = read[-1]
        has.turn(Cancel(execution_id=left, reason="", action_ref="a", key=key_of[left], priority=priority))
    assert read == sorted(read)
    assert len(read) == len(set(read)) == 100


def test_positions_in_a_page_are_those_in_the_queue_of_the_key() -> None:
    has = installation(slots=0)
    ids = [has.admit("a", key=str(number % 2))[0] for number in range(6)]
    page = has.ask(QueueOf(action_ref="a"))
    assert page is not None
    assert [(each.id, each.key, each.position) for each in page.items] == [
        (each, str(number % 2), 1 + number // 2) for number, each in enumerate(ids)
    ]
    of_key = has.ask(QueueOf(action_ref="a", key="1"))
    assert of_key is not None
    assert [each.id for each in of_key.items] == ids[1::2]
    assert has.ask(QueueOf(action_ref="nothing")) is None


def test_holders_of_a_queue_are_those_of_the_key() -> None:
    has = installation(slots=1)
    first, second = has.admit("a", key="x")[0], has.admit("a", key="y")[0]
    every, of_key = has.ask(QueueOf(action_ref="a")), has.ask(QueueOf(action_ref="a", key="y"))
    assert every is not None
    assert of_key is not None
    assert [each.id for each in every.holders] == [first, second]
    assert [(each.id, each.status, each.worker_id) for each in of_key.holders] == [
        (second, Status.SCHEDULED, "w")
    ]


def test_holders_are_the_executions_with_a_slot_also_where_a_worker_has_runs() -> None:
    has = installation(slots=2, concurrency=3)
    has.end_after(0.06, *has.admit("a"))
    ids = has.admit("a", count=12)
    at_worker = has.ask(WorkerOf(worker_id="w"))
    assert at_worker is not None
    assert len(at_worker.held) == 2 + 4
    queue, pool = has.ask(QueueOf(action_ref="a")), has.ask(PoolQueue(name="default"))
    assert queue is not None
    assert pool is not None
    assert [each.id for each in queue.holders] == [each.id for each in pool.holders] == ids[:2]
    assert [each.id for each in queue.items] == ids[6:]
    (gauge,) = has.ask(Gates()).pools
    assert (gauge.capacity, gauge.held, gauge.wanted) == (3, 2, 2)


def test_a_resource_says_who_waits_and_who_holds() -> None:
    has = Installation(
        DefineResource(resource=Resource(name="r", capacity=3)),
        DefineAction(action=Action(ref="a", uses=(Use(resource="r", units=2),))),
        WorkerChanged(worker_id="w", pools=frozenset({"default"}), concurrency=10),
    )
    first, second, third = has.admit("a", count=3)
    page = has.ask(ResourceQueue(name="r"))
    assert page is not None
    assert (page.capacity, page.held, page.waiting, page.order) == (3, 2, 2, "arrival")
    assert [(each.id, each.position, each.units) for each in page.items] == [(second, 1, 2), (third, 2, 2)]
    holder = page.holders[0]
    assert (holder.id, holder.units, holder.worker_id) == (first, 2, "w")
    assert holder.passed_at == has.now
    behind = has.ask(ResourceQueue(name="r", offset=1))
    assert behind is not None
    assert [(each.id, each.position) for each in behind.items] == [(third, 2)]
    assert has.ask(ResourceQueue(name="nothing")) is None


def test_a_pool_says_who_waits_and_who_holds() -> None:
    has = installation(slots=10, concurrency=1)
    first, second = has.admit("a", count=2)
    page = has.ask(PoolQueue(name="default"))
    assert page is not None
    assert (page.capacity, page.held, page.waiting, page.wanted) == (1, 1, 1, 2)
    assert [each.id for each in page.items] == [second]
    assert [each.id for each in page.holders] == [first]
    assert has.ask(PoolQueue(name="nothing")) is None


def test_gates_are_counted_for_gauges() -> None:
    has = installation(slots=10, concurrency=1)
    has.turn(DefineResource(resource=Resource(name="r", capacity=3, paused=True)))
    has.admit("a", count=2)
    found = has.ask(Gates())
    assert [(each.name, each.capacity, each.paused) for each in found.resources] == [("r", 3, True)]
    assert [(each.name, each.held, each.waiting, each.served) for each in found.pools] == [
        ("default", 1, 1, ("a",))
    ]
    assert (found.resources[0].use, found.pools[0].use) == ((), ())
    with_use = has.ask(Gates(with_use=True))
    assert len(with_use.resources[0].use) == len(with_use.pools[0].use) == MINUTES


def test_the_bounds_of_actions_name_what_keeps_their_queues_waiting() -> None:
    has = installation(slots=1, concurrency=2)
    has.turn(DefineResource(resource=Resource(name="r", capacity=0)))
    has.turn(DefineAction(action=Action(ref="b", uses=(Use(resource="r"),), max_concurrent=9)))
    has.admit("b", key="k", count=3)
    (found,) = has.ask(BoundsOf(action_refs=("b", "unknown")))
    assert (found.next, found.is_closed) == (Bound("resource", "r", "capacity_zero"), True)
    assert counts_by_bound(found, 3, 0, 0) == {Bound("resource", "r", "capacity_zero"): 3}
    assert counts_by_bound(found, 0, 0, 0, "other") == {}


def test_workers_come_in_pages_and_one_with_what_it_holds() -> None:
    has = installation()
    for name in ("x", "v"):
        has.turn(WorkerChanged(worker_id=name, pools=frozenset({"other"}), concurrency=1))
    (running,) = has.admit("a")
    first = has.ask(Workers(limit=2))
    assert [each.worker_id for each in first.items] == ["v", "w"]
    assert first.next_id == "w"
    second = has.ask(Workers(after_id="w"))
    assert [each.worker_id for each in second.items] == ["x"]
    assert second.next_id is None
    assert [each.worker_id for each in has.ask(Workers(action_ref="a")).items] == ["w"]
    assert has.ask(Workers(action_ref="unknown")).items == ()
    one = has.ask(WorkerOf(worker_id="w"))
    assert one is not None
    assert [each.id for each in one.held] == [running]
    assert has.ask(WorkerOf(worker_id="nothing")) is None


def test_the_leader_describes_itself() -> None:
    assert has_epoch(installation().ask(Leading()))


def has_epoch(state: LeaderState) -> bool:
    return state.epoch == 7


def every_page(has: Installation, cursor: str, *, limit: int = PAGE_MAX) -> tuple[list[ChangesPage], str]:
    pages = []
    while True:
        pages.append(has.ask(Changes(cursor=cursor, limit=limit)))
        cursor = pages[-1].cursor
        if not pages[-1].has_more:
            return pages, cursor


def names(pages: Sequence[ChangesPage]) -> list[tuple[str, str]]:
    return [(each.action_ref, each.key) for page in pages for each in page.queues]


def test_who_asks_first_gets_every_queue_and_then_only_what_changed() -> None:
    has = installation(slots=1)
    for key in "xyz":
        has.admit("a", key=key, count=2)
    pages, cursor = every_page(has, "", limit=3)
    assert [page.is_new for page in pages] == [True, False]
    assert sorted(names(pages)) == [("a", ""), ("a", "x"), ("a", "y"), ("a", "z")]
    pages, cursor = every_page(has, cursor)
    assert names(pages) == []
    (third,) = has.admit("a", key="y")
    pages, cursor = every_page(has, cursor)
    (row,) = pages[0].queues
    assert (row.key, row.length, row.active, row.max_concurrent) == ("y", 2, 1, 1)
    assert (pages[0].actions[0].enqueued, third) == (7, 7)


def test_a_row_has_the_limit_of_its_key_and_the_slots_that_are_held_while_waiting() -> None:
    uses = (Use(resource="first"), Use(resource="last"))
    has = Installation(
        DefineResource(resource=Resource(name="first", capacity=9, rank=1)),
        DefineResource(resource=Resource(name="last", capacity=1, rank=2)),
        DefineAction(action=Action(ref="a", max_concurrent=2, uses=uses)),
        SetKey(action_ref="a", key="own", settings=KeySettings(has_limit=True, max_concurrent=4)),
        WorkerChanged(worker_id="w", pools=frozenset({"default"}), concurrency=10),
    )
    running, holding, *_ = has.admit("a", key="own", count=5)
    has.admit("a", key="other")
    has.end(running)
    queued_at = has.state.executions[holding + 1].queued_at
    pages, _ = every_page(has, "")
    rows = {row.key: row for page in pages for row in page.queues}
    own = rows["own"]
    assert (own.active, own.held_waiting, own.max_concurrent, own.length) == (1, 3, 4, 3)
    assert (own.head_id, own.oldest_enqueued_at) == (holding + 1, queued_at)
    assert (rows["other"].held_waiting, rows["other"].max_concurrent) == (1, 2)
    stats = has.ask(Stats(action_refs=("a",))).items[0].stats
    assert stats is not None
    assert (stats.active_count, stats.held_waiting, stats.max_concurrent) == (1, 4, 2)
    assert [(each.key, each.max_concurrent) for each in stats.by_key] == [("own", 4), ("other", 2)]


def test_a_queue_that_changed_often_is_named_once() -> None:
    has = installation()
    _, cursor = every_page(has, "")
    for _ in range(5):
        has.admit("a", key="x")
        has.admit("a", key="y")
    pages, _ = every_page(has, cursor, limit=1)
    assert names(pages) == [("a", "x"), ("a", "y")]


def test_a_log_that_grew_long_is_gathered_and_misses_nothing() -> None:
    has = installation()
    _, cursor = every_page(has, "")
    for _ in range(700):
        has.admit("a", key="x")
        has.admit("a", key="y")
        # Less time has passed than a log without askers lives.
        has.now -= 2.0
    pages, cursor = every_page(has, cursor)
    assert names(pages) == [("a", "x"), ("a", "y")]
    has.admit("a", key="x")
    assert names(every_page(has, cursor)[0]) == [("a", "x")]


def test_a_second_one_who_asks_gets_every_queue_too_and_the_first_goes_on() -> None:
    has = installation()
    has.admit("a", key="x", count=2)
    _, first = every_page(has, "")
    has.admit("a", key="y")
    pages, _ = every_page(has, "")
    assert sorted(names(pages)) == [("a", ""), ("a", "x"), ("a", "y")]
    pages, _ = every_page(has, first)
    assert names(pages) == [("a", "y")]


def test_a_queue_that_is_idle_again_and_a_deleted_action_are_reported() -> None:
    has = installation()
    has.turn(DefineAction(action=Action(ref="b")))
    (only,) = has.admit("a", key="x")
    _, cursor = every_page(has, "")
    has.end(only)
    has.turn(DeleteAction(ref="b", reason="", source=None), refs=("b",))
    pages, _ = every_page(has, cursor)
    (row,) = pages[0].queues
    assert (row.key, row.length, row.active) == ("x", 0, 0)
    assert pages[0].deleted == ("b",)


@pytest.mark.parametrize("cursor", ["2.1-5", "1.9-5", "nonsense", "1.1-", "-"])
def test_a_cursor_of_another_leadership_begins_anew(cursor: str) -> None:
    has = installation()
    every_page(has, "")
    page = has.ask(Changes(cursor=cursor))
    assert page.is_new
    assert names([page]) == [("a", "")]


def test_who_comes_back_after_nobody_asked_for_long_begins_anew() -> None:
    has = installation()
    _, cursor = every_page(has, "")
    has.now += 60.0
    has.turn()
    assert has.ask(Changes(cursor=cursor)).is_new


@pytest.mark.parametrize(
    "question",
    [
        Explain(executions=(Execution(id=1, action_ref="a"),) * (EXPLAINED_MAX + 1)),
        QueueOf(action_ref="a", limit=PAGE_MAX + 1),
        QueueOf(action_ref="a", limit=0),
        PoolQueue(name="p", offset=-1),
        ResourceQueue(name="r", offset=-1),
        Stats(action_refs=("a",) * (PAGE_MAX + 1)),
    ],
)
def test_a_question_without_bounds_is_refused(question: Question[object]) -> None:
    with pytest.raises(InvalidQuestion):
        check(question)
    with pytest.raises(InvalidQuestion):
        read_question(pack_question(question))


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"ask": "Nothing", "question": {}}',
                                  b'{"ask": "Explain", "question": {"executions": 1}}'])  # fmt: skip
def test_what_is_no_question_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidQuestion):
        read_question(data)


def test_a_reply_that_cannot_be_read_is_no_answer() -> None:
    question = Workers()
    for data in (b"", b'{"body": {"items": 3}}', b"\xff"):
        reply = read_reply(question, data)
        assert isinstance(reply, Unanswered)
        assert reply.why == "no_answer"
    unanswered = Unanswered(why="overloaded", message="later")
    assert read_reply(question, pack_unanswered(unanswered)) == unanswered


def test_fields_of_a_newer_executor_are_ignored() -> None:
    data = b'{"ask": "Workers", "new": 1, "question": {"limit": 5, "newer": 2}}'
    assert read_question(data) == Workers(limit=5)


@pytest.mark.parametrize("order", ["arrival", "fair"])
def test_a_page_far_behind_is_the_order_when_it_was_asked_for_and_without_what_has_left(order: Any) -> None:
    has = Installation(
        DefineResource(resource=Resource(name="r", capacity=1, order=order)),
        DefineAction(action=Action(ref="a", uses=(Use(resource="r", weight=3),))),
        DefineAction(action=Action(ref="k", uses=(Use(resource="r"),), max_concurrent_total=9, order=order)),
        DefinePool(pool=Pool(name="default", order=order)),
        WorkerChanged(worker_id="w", pools=frozenset({"default"}), concurrency=1),
    )
    holder, *_ = has.admit("a", count=1200)
    for number in range(400):
        has.admit("k", key=str(number % 40), priority=2 + number % 2, count=3)
    gate = has.state.resources["r"]
    expected = [place.id for place in order_at(gate, members_at(has.state, gate))]
    assert len(expected) == 2399
    steps = answer(ResourceQueue(name="r", offset=1500, limit=800), has)
    # The queues of each action are copied.
    for _ in range(3):
        next(steps)
    # What happens before the next step: the first ones start, some leave, others come.
    has.end(holder)
    gone = expected[1600:1650]
    live = [live_execution(has.state, named) for named in known(has, gone)]
    has.turn(
        *(
            Cancel(execution_id=each.id, reason="", action_ref=each.action_ref, key=each.key,
                   priority=each.priority)
            for each in live if each is not None
        )
    )  # fmt: skip
    has.admit("k", key="new", priority=1, count=5)
    page: Any = whole(steps)
    left = [(n, each) for n, each in enumerate(expected[1500:2300], 1501) if each not in gone]
    assert [(each.position, each.id) for each in page.items] == left
    assert whole(places_at(has.state, gate, 10**12, 10)) == ()


def known(has: Installation, ids: Sequence[int]) -> Iterable[Execution]:
    """Yield these executions of `a`, or of `k` by key and priority."""
    for queue in (queue for action in has.state.actions.values() for queue in action.queues.values()):
        for priority, waiting in queue.waiting.items():
            found = set(waiting) & set(ids)
            for each in found:
                yield Execution(id=each, action_ref=queue.action.ref, key=queue.key, priority=priority)
