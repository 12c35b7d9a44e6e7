"""Stored definitions as the scheduler reads them, and the order of commands in a turn."""

from typing import Any
from uuid import UUID

from turnstile.common.action_definition import ActionDefinition
from turnstile.executor.definitions import PoolDefinition, ResourceDefinition
from turnstile.executor.leader.commands import Definitions, input_of, undivided
from turnstile.executor.leader.door import definition_tag
from turnstile.executor.leader.ports import CancelRequest, Command, DefinitionCommand, InboxRow
from turnstile.executor.leader.records import DefinitionRow
from turnstile.executor.queue_manager.definitions import Action, Pool, Rate, Resource, Use
from turnstile.executor.queue_manager.inputs import (
    DefineAction,
    DefinePool,
    DefineResource,
    DeletePool,
)
from turnstile.executor.queue_manager.retries import RetryPolicy
from turnstile.executor.queue_manager.state import State


def _body(model: Any, **fields: Any) -> Any:
    return model.model_validate(fields).model_dump(mode="json")


def test_every_field_of_an_action_that_decides_is_read() -> None:
    body = _body(
        ActionDefinition, ref="a", runner="http", entrypoint="https://x/y", max_concurrent=2,
        concurrency_key="/c", max_concurrent_total=9, order="fair", rate={"starts": 5, "per": "1m"},
        uses=["s", {"resource": "r", "units": 2, "weight": 3}], timeout="5m", ttl="1h",
        retry={"max_attempts": 4, "delay": "2s", "factor": 3, "max_delay": "1m", "jitter": 0},
        on_worker_lost="abandon", max_reclaims=1, pool="gpu", when_full="reject", max_queued=7, paused=True,
        runs=False, priority_min=4, callback_url="http://x/", keep_count=5,
        parameters_schema={"type": "object"},
    )  # fmt: skip
    assert input_of(DefinitionRow(kind="action", name="a", body=body)) == DefineAction(
        action=Action(
            ref="a", pool="gpu", max_concurrent=2, max_concurrent_total=9, order="fair",
            uses=(Use(resource="r", units=2, weight=3), Use(resource="s")),
            rate=Rate(starts=5, per_seconds=60.0), paused=True,
            retry=RetryPolicy(
                max_attempts=4, delay_seconds=2.0, factor=3.0, max_delay_seconds=60.0, jitter=0.0
            ),
            timeout_seconds=300.0, ttl_seconds=3600.0, on_worker_lost="abandon", max_reclaims=1,
            when_full="reject", max_queued=7, needs_code=False, runs=False,
        )
    )  # fmt: skip


def test_only_an_action_without_an_entrypoint_needs_the_code_of_a_worker() -> None:
    for fields, needs_code in (({}, True), ({"entrypoint": "m:f"}, False)):
        defined = input_of(
            DefinitionRow(kind="action", name="a", body=_body(ActionDefinition, ref="a", **fields))
        )
        assert isinstance(defined, DefineAction)
        assert defined.action.needs_code is needs_code


def test_a_resource_without_a_limit_is_never_full_and_one_without_a_rank_comes_last() -> None:
    defined = input_of(DefinitionRow(kind="resource", name="r", body=_body(ResourceDefinition, name="r")))
    assert isinstance(defined, DefineResource)
    assert defined.resource.capacity > 10**12
    assert defined.resource.rank > 10**12
    body = _body(ResourceDefinition, name="r", capacity=0, rank=2, order="fair", rate={"starts": 1, "per": 1})
    assert input_of(DefinitionRow(kind="resource", name="r", body=body)) == DefineResource(
        resource=Resource(name="r", capacity=0, rank=2, order="fair", rate=Rate(starts=1, per_seconds=1.0))
    )


def test_a_pool_is_read_with_its_weights() -> None:
    body = _body(PoolDefinition, name="p", order="arrival", weights={"a": 3}, paused=True)
    assert input_of(DefinitionRow(kind="pool", name="p", body=body)) == DefinePool(
        pool=Pool(name="p", order="arrival", weights={"a": 3}, paused=True)
    )


def test_a_tag_changes_with_each_field_and_not_with_their_order() -> None:
    body = _body(ActionDefinition, ref="a")
    assert definition_tag(body) == definition_tag(dict(reversed(body.items())))
    assert definition_tag(body) != definition_tag({**body, "paused": True})


def test_a_tag_is_that_of_the_row_whose_numbers_the_database_writes_otherwise() -> None:
    schema = {"properties": {"n": {"minimum": 1e22, "maximum": -0.0, "multipleOf": 0.5, "enum": [2.0]}}}
    as_stored = {"properties": {"n": {"minimum": 10**22, "maximum": 0, "multipleOf": 0.5, "enum": [2]}}}
    assert definition_tag({"timeout": 5.0, "parameters_schema": schema}) == definition_tag(
        {"timeout": 5, "parameters_schema": as_stored}
    )


def test_a_pool_that_an_action_names_is_stored_once_without_an_author() -> None:
    definitions = Definitions()
    for ref in ("a", "b"):
        body = _body(ActionDefinition, ref=ref, pool="gpu")
        command = DefinitionCommand(kind="action", name=ref, definition=body, changed_by={"name": "ann"})
        definitions.change(command, State(epoch=1))
    assert [(row.kind, row.name) for row in definitions.rows if row.kind == "pool"] == [("pool", "gpu")]
    assert {each.subject_kind for each in definitions.log.rows} == {"action"}
    resumed = DefinitionCommand(kind="pool", name="gpu", definition={"paused": False}, is_patch=True)
    assert definitions.change(resumed, State(epoch=1))[1]["is_changed"] is False


def test_nothing_is_decided_in_a_turn_after_the_deletion_of_an_action() -> None:
    cancel = CancelRequest(execution_id=1, idempotency_key=None, reason="")
    deletion = DefinitionCommand(kind="action", name="a", definition=None)
    resource = DefinitionCommand(kind="resource", name="r", definition=None)
    commands: list[Command] = [cancel, resource, deletion, cancel]
    rows = [
        InboxRow(id=number, command_id=UUID(int=number), body=body) for number, body in enumerate(commands)
    ]
    assert [row.id for row in undivided(rows)] == [0, 1, 2]
    assert len(undivided(rows[:2])) == 2


def test_a_pool_that_is_named_no_more_goes_unless_it_is_served_or_set() -> None:
    definitions, state = Definitions(), State(epoch=1)

    def define(kind: Any, name: str, body: Any) -> None:
        definitions.change(DefinitionCommand(kind=kind, name=name, definition=body), state)

    for ref, pool in (("a", "moved"), ("b", "served"), ("c", "set")):
        define("action", ref, _body(ActionDefinition, ref=ref, pool=pool))
    define("pool", "set", _body(PoolDefinition, name="set"))
    assert list(definitions.unused_pools((), has_changed=False)) == []
    for ref in "abc":
        define("action", ref, _body(ActionDefinition, ref=ref))
    assert list(definitions.unused_pools(["served"], has_changed=False)) == [DeletePool(name="moved")]
    assert (definitions.rows[-1].name, definitions.rows[-1].body) == ("moved", None)
    definitions.written()
    assert list(definitions.unused_pools((), has_changed=False)) == []
    assert list(definitions.unused_pools((), has_changed=True)) == [DeletePool(name="served")]
    loaded = [DefinitionRow(kind="pool", name=name, body={"name": name}) for name in ("default", "left")]
    loaded.append(DefinitionRow(kind="action", name="a", body=_body(ActionDefinition, ref="a")))
    assert list(Definitions(loaded).unused_pools((), has_changed=False)) == [DeletePool(name="left")]
