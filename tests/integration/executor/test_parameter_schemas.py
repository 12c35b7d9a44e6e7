"""Parameters are checked before admission, while versions of workers come and go."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.support.inbox import ScriptedWorker
from tests.support.served import Served
from tests.support.traffic import until
from turnstile.worker.parameters import schemas_of_function
from turnstile.worker.schemas import ActionSchemas

EXECUTIONS = "/api/v1/executions"
REMEDY = "to see what it takes: executor actions show a"


def narrow(customer_id: int) -> None: ...


def wide(customer_id: int, note: str = "") -> dict[str, int]:
    return {note: customer_id}


def other(name: str) -> None: ...


async def register(
    api: Served, *functions: Callable[..., Any], schemas: Mapping[str, ActionSchemas] | None = None
) -> ScriptedWorker:
    """Register a worker whose action `a` is this function; without one, a worker without schemas."""
    worker = api.new_worker(f"w{len(api.leader.broker.workers)}")
    if functions:
        schemas = {"a": schemas_of_function(functions[0])}
    described = [
        {"ref": ref, "parameters": each.parameters, "result": each.result}
        for ref, each in (schemas or {}).items()
    ]
    worker.hello({"ref": "a"}, actions=("a",), about={"schemas": described})
    await until(lambda: worker.worker_id in live(api), "a registered worker")
    return worker


def live(api: Served) -> set[str]:
    lead = api.leader.leader.leadership
    return set() if lead is None else {each.row.worker_id for each in lead.sessions.all() if each.is_answered}


async def leave(api: Served, worker: ScriptedWorker) -> None:
    worker.leave()
    await until(lambda: worker.worker_id not in live(api), "a worker that has left")


async def verdict(api: Served, **parameters: object) -> str:
    """Submit when what counts now is known; return "" or the reason of the refusal."""
    api.leader.schemas._judges.clear()
    return await verdict_at_once(api, **parameters)


async def verdict_at_once(api: Served, **parameters: object) -> str:
    answer = await api.http.post(EXECUTIONS, json={"action_ref": "a", "parameters": parameters})
    if answer.status_code == 202:
        return ""
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameters")
    return str(answer.json()["detail"])


async def shown(api: Served) -> dict[str, Any]:
    return dict(await api.get("/actions/a"))


async def test_what_one_of_two_live_versions_can_run_is_never_refused(api: Served) -> None:
    old = await register(api, narrow)
    assert "note: unknown parameter" in await verdict(api, customer_id=1, note="x")
    # At once, without a wait for the next refresh of the schemas.
    new = await register(api, wide)
    assert await verdict_at_once(api, customer_id=1, note="x") == ""
    newest = await register(api, other)
    assert await verdict_at_once(api, name="x") == ""
    assert await verdict(api, customer_id=1, note="x") == ""
    assert "parameters.name: expected text" in await verdict(api, name=5)
    await leave(api, old)
    await leave(api, new)
    assert "parameters.note: unknown parameter" in await verdict(api, customer_id=1, note="x")
    # Without a worker, the code that was registered last.
    await leave(api, newest)
    assert await verdict(api, name="x") == ""
    assert "parameters.customer_id: unknown parameter" in await verdict(api, customer_id=1)
    # A version that returns.
    await register(api, narrow)
    assert await verdict(api, customer_id=1) == ""
    assert "parameters.name: unknown parameter" in await verdict(api, name="x")


async def test_the_schema_of_the_definition_decides_alone(api: Served) -> None:
    given = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 3}},
        "required": ["name"],
    }
    await register(api, narrow)
    await api.define("a", parameters_schema=given)
    assert await verdict(api, name="abc", customer_id=7) == ""
    assert await verdict(api, name="abcd") == f"parameters.name: expected 3 characters or fewer; {REMEDY}"
    action = await shown(api)
    assert (action["parameters_schema"], action["parameters_checked_by"]) == (given, "definition")
    await api.define("a")
    assert "name: unknown parameter" in await verdict(api, name="abc")


async def test_the_action_shows_the_schemas_of_its_live_code(api: Served) -> None:
    await register(api, narrow)
    before = await api.http.get("/api/v1/actions/a")
    await register(api, wide)
    after = await api.http.get("/api/v1/actions/a")
    found = after.json()["code_schemas"]
    assert [sorted(each["parameters_schema"]["properties"]) for each in found] == [
        ["customer_id", "note"], ["customer_id"],
    ]  # fmt: skip
    assert found[0]["result_schema"] == {"additionalProperties": {"type": "integer"}, "type": "object"}
    assert after.json()["parameters_checked_by"] == "code"
    # A conditional change does not fail because a worker has started.
    assert before.headers["ETag"] == after.headers["ETag"]


async def test_schemas_that_no_live_worker_has_are_deleted_except_the_newest(api: Served) -> None:
    await leave(api, await register(api, narrow))
    await register(api, wide)
    await register(api, other)
    kept = "SELECT jsonb_array_length(body -> 'versions') AS kept FROM ledger.definition WHERE kind = 'code'"
    assert [row["kept"] for row in await api.database.fetch(kept)] == [2]


async def test_the_next_leader_checks_by_what_live_workers_have(api: Served) -> None:
    await register(api, narrow)
    await register(api, wide)
    await api.leader.kill()
    api.leader = api.installation.lead("b")
    assert await verdict_at_once(api, customer_id=1, note="x") == ""
    assert "anything: unknown parameter" in await verdict_at_once(api, anything=1)
