"""What is a duplicate, what is too early, who is answered."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID, uuid5

import pytest
from msgspec import structs

from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import Hello, Sender, Welcome
from turnstile.executor.leader.admission import EARLY_SECONDS, Admission, Source
from turnstile.executor.leader.commands import Definitions
from turnstile.executor.leader.ports import (
    CancelRequest,
    DefinitionCommand,
    InboxRow,
    RefusedRequest,
    Request,
    Singleton,
)
from turnstile.executor.leader.records import DefinitionRow, EarlyCancelRow, Known, SingletonRow
from turnstile.executor.leader.registration import register
from turnstile.executor.leader.sessions import Sessions
from turnstile.executor.leader.turns import join
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.definitions import Action
from turnstile.executor.queue_manager.inputs import DefineAction, Input, WorkerChanged
from turnstile.executor.queue_manager.state import State

SPACE = UUID(int=0)
DEFINED = DefinitionRow(kind="action", name="a", body={"ref": "a"})


def request(text: str = "1", *, idempotency_key: str | None = None, ref: str = "a") -> Request:
    return Request(
        action_ref=ref, parameters=text.encode(), request_hash=uuid5(SPACE, ref + text),
        idempotency_key=idempotency_key,
    )  # fmt: skip


def message(body: Request | CancelRequest | RefusedRequest, key: str) -> Source:
    return Source(request=body, delivery_key=uuid5(SPACE, key), reply_to="client", correlation_id=key)


class World:
    """An admission beside a state with one action and one worker slot."""

    def __init__(self, *early: EarlyCancelRow, singletons: Iterable[SingletonRow] = ()) -> None:
        self.state = State()
        joined = WorkerChanged(worker_id="w", pools=frozenset({"default"}), concurrency=1)
        decide(self.state, [DefineAction(action=Action(ref="a")), joined], 0.0)
        self.definitions = Definitions([DEFINED])
        self.admission = Admission(early, singletons, self.state, self.definitions)

    def turn(self, *sources: Source, now: float = 1.0) -> Decisions:
        inputs = [each for source in sources for each in self.admission.inputs(source, now)]
        out = decide(self.state, inputs, now, grants_max=0)
        second = decide(self.state, list(self.admission.decided(out)), now)
        assert not list(self.admission.decided(second))
        join(out, second)
        return out

    def answers(self) -> list[Mapping[str, Any]]:
        return [p.body for p in self.admission.take_publications() if isinstance(p.body, Mapping)]


def test_a_delay_begins_with_the_admission_and_a_copy_of_the_request_is_the_same_execution() -> None:
    world = World()
    delayed = structs.replace(request(idempotency_key="k"), delay_seconds=5.0)
    (first,) = world.turn(message(delayed, "m"), now=10.0).admitted
    assert (first.due_at, first.source.request.run_at) == (15.0, 15.0)
    assert not world.turn(message(delayed, "n"), now=12.0).admitted
    assert [each["status"] for each in world.answers()] == ["delayed", "delayed"]


def test_a_message_that_is_published_again_is_the_same_execution() -> None:
    world = World()
    world.turn(message(request(), "m"))
    out = world.turn(message(request(), "m"))
    assert not out.admitted
    assert [(a["execution_id"], a["duplicate"]) for a in world.answers()] == [(1, False), (1, True)]


def test_copies_inside_one_turn_are_one_execution_and_each_is_answered() -> None:
    world = World()
    out = world.turn(*[message(request(idempotency_key="k"), f"m{n}") for n in range(50)])
    assert len(out.admitted) == 1
    assert [a["execution_id"] for a in world.answers()] == [1] * 50


def test_an_idempotency_key_with_another_request_is_refused() -> None:
    world = World()
    world.turn(message(request("1", idempotency_key="k"), "m1"))
    world.answers()
    out = world.turn(message(request("2", idempotency_key="k"), "m2"))
    assert not out.admitted
    assert world.answers()[0]["code"] is Code.IDEMPOTENCY_CONFLICT


def test_a_copy_of_a_refused_request_is_refused_with_it() -> None:
    world = World()
    twice = [message(request(ref="unknown", idempotency_key="k"), f"m{n}") for n in range(2)]
    world.turn(*twice)
    codes = [a.get("code") for a in world.answers() if "code" in a]
    assert codes == [Code.UNKNOWN_ACTION, Code.UNKNOWN_ACTION]


def test_keys_that_are_not_in_memory_are_looked_up_and_decided() -> None:
    world = World()
    source = message(request(idempotency_key="k"), "m")
    keys, names, ids = world.admission.missing([source])
    assert (keys, names, ids) == ([source.delivery_key], ["k"], [])
    known = Known(
        execution_id=40, request_hash=source.request.request_hash, status=Status.COMPLETED,  # type: ignore[union-attr]
        action_ref="a", key="", priority=3,
    )  # fmt: skip
    world.admission.learn({"k": known})
    out = world.turn(source)
    assert not out.admitted
    assert world.answers()[0]["execution_id"] == 40


def test_a_cancel_in_the_turn_of_its_request_wins_over_the_grant() -> None:
    world = World()
    cancel = CancelRequest(execution_id=None, idempotency_key="k", reason="not needed")
    out = world.turn(message(request(idempotency_key="k"), "m"), message(cancel, "c"))
    assert not out.granted
    (end,) = out.finished
    assert (end.status, end.error) == (Status.CANCELLED, ("Cancelled", "not needed"))


def test_a_cancel_before_its_request_is_kept_and_wins() -> None:
    world = World()
    cancel = CancelRequest(execution_id=None, idempotency_key="k", reason="early")
    world.turn(message(cancel, "c"))
    (row,) = world.admission.early_rows
    world.admission.written()
    out = world.turn(message(request(idempotency_key="k"), "m"))
    assert [end.status for end in out.finished] == [Status.CANCELLED]
    assert world.admission.early_over == [row.id]


def test_an_early_cancel_survives_a_change_of_leader() -> None:
    row = EarlyCancelRow(id=4, execution_id=None, idempotency_key="k", reason="early", kept_until=99.0)
    world = World(row)
    out = world.turn(message(request(idempotency_key="k"), "m"))
    assert [end.status for end in out.finished] == [Status.CANCELLED]


def test_an_early_cancel_whose_execution_does_not_come_is_a_dead_letter() -> None:
    world = World()
    cancel = CancelRequest(execution_id=99, idempotency_key=None, reason="x", properties='{"message_id":"c"}')
    world.turn(message(cancel, "c"))
    assert not world.answers()
    (row,) = world.admission.early_rows
    world.admission.expire_early(1.0 + EARLY_SECONDS)
    (refused,) = world.answers()
    assert refused["code"] is Code.UNKNOWN_EXECUTION
    # The next leader does not know where to answer.
    later = World(row)
    later.admission.expire_early(1.0 + EARLY_SECONDS)
    (letter,) = later.answers()
    assert (letter["x-error-code"], letter["request"]) == (Code.UNKNOWN_EXECUTION, cancel)


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (request(), Code.QUEUE_FULL),
        (request(ref="missing"), Code.UNKNOWN_ACTION),
        (
            structs.replace(request(), refusal=(Code.INVALID_PARAMETERS, "parameters: wrong")),
            Code.INVALID_PARAMETERS,
        ),
        (RefusedRequest(code=Code.TOO_LARGE, message="message: 99 bytes", body=None), Code.TOO_LARGE),
    ],
)
def test_a_refusal_is_an_answer_and_a_dead_letter_only_without_an_address(
    refused: Request | RefusedRequest, code: Code
) -> None:
    world = World()
    decide(world.state, [DefineAction(action=Action(ref="a", max_concurrent=0, max_queued=0))], 0.0)
    world.turn(message(refused, "m1"), Source(request=refused, delivery_key=uuid5(SPACE, "m2")))
    answer, letter = world.answers()
    assert answer["code"] is letter["x-error-code"] is code
    assert answer["correlation_id"] == "m1"


def test_a_cancel_of_an_ended_execution_is_refused() -> None:
    world = World()
    world.turn(message(request(idempotency_key="k"), "m"))
    cancel = CancelRequest(execution_id=1, idempotency_key=None, reason="x")
    world.state.executions.clear()
    world.answers()
    world.turn(message(cancel, "c"))
    assert world.answers()[0]["code"] is Code.ALREADY_TERMINAL


def test_a_command_of_the_inbox_is_answered_under_its_id() -> None:
    world = World()
    command = uuid5(SPACE, "command")
    world.turn(Source(request=request(), delivery_key=command, command_id=command))
    ((key, answer),) = world.admission.answers
    assert key == command
    assert answer["execution_id"] == 1


def changed(world: World, command: DefinitionCommand) -> Mapping[str, Any]:
    """Have a command decided; return its answer."""
    row = InboxRow(id=1, command_id=uuid5(SPACE, command.name), body=command)
    world.definitions.decided(
        decide(world.state, world.definitions.inputs(row, command, world.state), 1.0, grants_max=0)
    )
    ((command_id, answer),) = world.definitions.answers
    assert command_id == row.command_id
    return answer


def test_a_definition_is_written_in_the_turn_that_applies_it() -> None:
    world = World()
    body = {"ref": "b", "max_concurrent": 2, "uses": [], "rate": None}
    command = DefinitionCommand(kind="action", name="b", definition=body, changed_by={"user": "ann"})
    assert changed(world, command)["is_changed"]
    (row,) = [row for row in world.definitions.rows if row.kind == "action"]
    assert (row.name, row.changed_by) == ("b", {"user": "ann"})
    assert world.state.actions["b"].definition.max_concurrent == 2


def test_an_action_with_running_executions_is_not_deleted() -> None:
    world = World()
    world.turn(message(request(), "m"))
    delete = DefinitionCommand(kind="action", name="a", definition=None)
    assert changed(world, delete)["code"] is Code.IN_USE
    assert not world.definitions.rows


def hello(*definitions: Mapping[str, Any]) -> Hello:
    return Hello(
        sender=Sender(worker_id="w", session=1, secret="s"), name="w", pools=("default",), actions=("b",),
        concurrency=1, lease_seconds=30.0, epoch_seen=0, is_taking=False, definitions=definitions,
    )  # fmt: skip


def registered(world: World, *definitions: Mapping[str, Any]) -> tuple[Welcome, list[Input]]:
    """Return the answer to a hello, and which actions it registers."""
    sessions = Sessions(1, world.state, (), 0.0)
    _, welcome, inputs = register(hello(*definitions), world.definitions, sessions, world.state)
    decide(world.state, inputs, 1.0)
    return welcome, [each for each in inputs if isinstance(each, DefineAction)]


def test_a_worker_registers_its_actions_before_it_can_take_offers() -> None:
    world = World()
    registered(world, {"ref": "b", "max_concurrent": 2})
    out = world.turn(message(request(ref="b"), "m"))
    assert len(out.admitted) == 1
    assert [row.name for row in world.definitions.rows if row.kind == "action"] == ["b"]


def test_a_worker_never_changes_an_action_that_exists() -> None:
    _, defined = registered(World(), {"ref": "a", "max_concurrent": 99})
    assert not defined


def test_a_worker_is_told_what_differs_and_what_was_refused_and_why() -> None:
    world = World()
    registered(world, {"ref": "b", "max_concurrent": 1})
    welcome, _ = registered(
        world,
        {"ref": "b", "max_concurrent": 99},
        {"ref": "d"},
        {"max_concurrent": 1},
        {"ref": "c", "pool": 7},
    )
    assert [body["ref"] for body in welcome.stored] == ["b"]
    assert [text.partition(": ")[::2] for text in welcome.refused] == [
        ("action 'None'", "ref: expected text"), ("action 'c'", "pool: expected text"),
    ]  # fmt: skip


def test_two_workers_that_register_one_action_in_one_turn_define_it_once() -> None:
    world = World()
    _, first = registered(world, {"ref": "b", "max_concurrent": 2})
    _, second = registered(world, {"ref": "b", "max_concurrent": 9})
    assert (len(first), second) == (1, [])


def single(
    text: str = "1", *, when: str = "waiting_or_running", then: str = "return_existing", ref: str = "a"
) -> Request:
    return structs.replace(request(text, ref=ref), singleton=Singleton("s", when, then))  # type: ignore[arg-type]


def test_a_second_request_with_a_singleton_is_answered_with_the_first_execution_until_that_ends() -> None:
    world = World()
    decide(world.state, [DefineAction(action=Action(ref="a", max_concurrent=0))], 0.0)
    (first,) = world.turn(message(single("1"), "m1")).admitted
    assert not world.turn(message(single("2"), "m2")).admitted
    assert [(a["execution_id"], a["duplicate"]) for a in world.answers()] == [(1, False), (1, True)]
    world.turn(message(CancelRequest(execution_id=first.id, idempotency_key=None, reason=""), "c"))
    assert [each.id for each in world.turn(message(single("3"), "m3")).admitted] == [2]


def test_of_two_requests_with_a_singleton_in_one_turn_the_second_is_answered_with_the_first() -> None:
    world = World()
    out = world.turn(message(single("1"), "m1"), message(single("2"), "m2"))
    assert len(out.admitted) == 1
    assert [(a["execution_id"], a["duplicate"]) for a in world.answers()] == [(1, False), (1, True)]


def test_a_singleton_is_of_one_action() -> None:
    world = World()
    decide(world.state, [DefineAction(action=Action(ref="b"))], 0.0)
    assert len(world.turn(message(single(), "m1"), message(single(ref="b"), "m2")).admitted) == 2


def test_a_second_request_with_a_singleton_is_refused_if_it_says_so() -> None:
    world = World()
    world.turn(message(single(), "m1"), message(single("2", then="refuse"), "m2"))
    world.turn(message(single("3", then="refuse"), "m3"))
    _, *refused = world.answers()
    assert [each["code"] for each in refused] == [Code.SINGLETON_EXISTS] * 2
    assert "'s' names execution 1, which is " in refused[1]["message"]


@pytest.mark.parametrize("turns", [1, 2])
def test_a_newer_request_replaces_the_one_with_its_singleton(turns: int) -> None:
    world = World()
    decide(world.state, [DefineAction(action=Action(ref="a", max_concurrent=0))], 0.0)
    sources = [message(single(str(n), then="cancel_running"), f"m{n}") for n in range(3)]
    outs = [world.turn(*sources)] if turns == 1 else [world.turn(each) for each in sources]
    assert [each.id for out in outs for each in out.admitted] == [1, 2, 3]
    assert [(each.id, each.status) for out in outs for each in out.finished] == [
        (1, Status.CANCELLED),
        (2, Status.CANCELLED),
    ]


def test_a_replaced_execution_at_a_worker_is_asked_to_stop() -> None:
    world = World()
    world.turn(message(single("1"), "m1"))
    out = world.turn(message(single("2", then="cancel_running"), "m2"))
    assert [each.execution_id for each in out.asked] == [1]
    assert [each.id for each in out.admitted] == [2]


def test_a_singleton_of_what_waits_admits_one_beside_the_running_one() -> None:
    world = World()
    decide(world.state, [DefineAction(action=Action(ref="a", max_concurrent=1))], 0.0)
    admitted = [world.turn(message(single(str(n), when="waiting"), f"m{n}")).admitted for n in range(3)]
    assert [[each.id for each in one] for one in admitted] == [[1], [2], []]
    assert [each["execution_id"] for each in world.answers()] == [1, 2, 2]


def test_a_request_behind_the_cancel_of_its_singleton_is_admitted() -> None:
    world = World()
    decide(world.state, [DefineAction(action=Action(ref="a", max_concurrent=0))], 0.0)
    world.turn(message(single("1"), "m1"))
    cancel = CancelRequest(execution_id=1, idempotency_key=None, reason="")
    assert [e.id for e in world.turn(message(cancel, "c"), message(single("2"), "m2")).admitted] == [2]


def test_a_singleton_survives_a_change_of_leader() -> None:
    world = World()
    decide(world.state, [DefineAction(action=Action(ref="a", max_concurrent=0))], 0.0)
    world.turn(message(single("1"), "m1"))
    rows = world.admission.singletons.rows
    next_leader = World(singletons=rows)
    next_leader.state = world.state
    next_leader.admission = Admission((), rows, world.state, world.definitions)
    assert not next_leader.turn(message(single("2"), "m2")).admitted


def test_a_singleton_that_ends_in_the_turn_of_its_admission_leaves_no_row() -> None:
    world = World()
    cancel = CancelRequest(execution_id=None, idempotency_key="k", reason="")
    keyed = structs.replace(single(), idempotency_key="k")
    world.turn(message(keyed, "m"), message(cancel, "c"))
    assert (world.admission.singletons.rows, world.admission.singletons.over) == ([], [])


def test_a_second_request_shares_the_refusal_of_the_first_one() -> None:
    world = World()
    world.turn(message(single(ref="unknown"), "m1"), message(single("2", ref="unknown"), "m2"))
    assert [a["code"] for a in world.answers()] == [Code.UNKNOWN_ACTION] * 2


def test_a_repeated_message_that_was_answered_with_a_singleton_hears_how_that_ended() -> None:
    world = World()
    decide(world.state, [DefineAction(action=Action(ref="a", max_concurrent=0))], 0.0)
    world.turn(message(single("1"), "m1"))
    second = message(single("2"), "m2")
    world.turn(second)
    world.turn(message(CancelRequest(execution_id=1, idempotency_key=None, reason=""), "c"))
    world.answers()
    assert world.admission.missing([second])[2] == [1]
    assert not world.turn(second).admitted
    assert [(a["execution_id"], a["status"]) for a in world.answers()] == [(1, "cancelled")]


def test_an_idempotency_key_names_only_what_was_admitted_under_it() -> None:
    world = World()
    decide(world.state, [DefineAction(action=Action(ref="a", max_concurrent=0))], 0.0)
    world.turn(message(single("1"), "m1"))
    keyed = structs.replace(single("2"), idempotency_key="k")
    world.turn(message(keyed, "m2"))
    world.turn(message(CancelRequest(execution_id=1, idempotency_key=None, reason=""), "c"))
    assert [each.id for each in world.turn(message(keyed, "m3")).admitted] == [2]
