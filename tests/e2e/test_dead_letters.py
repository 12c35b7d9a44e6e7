"""Dead letters: stored once with their reasons, listed, replayed when they are corrected, pruned.

Whole services: a letter goes from the leader to the broker, the drain, the API and back.
"""

from typing import Any

import pytest
import pytest_asyncio

from tests.support.environment import Environment
from tests.support.traffic import ask, publishing, request, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def no_letters(env: Environment) -> None:
    """Purge the dead letters before each test."""
    await select(env, "purge", all=True)


async def letters(env: Environment, count: int, **query: Any) -> list[dict[str, Any]]:
    """Wait until there are `count` dead letters, and return them."""
    found: list[dict[str, Any]] = []

    async def are_there() -> bool:
        answer = await env.http.get("/dead-letters", params={"limit": 1000, **query})
        assert answer.status_code == 200, answer.text
        found[:] = answer.json()["items"]
        return len(found) >= count

    await until(are_there, f"{count} dead letters", deadline_seconds=30)
    assert len(found) == count
    return found


async def select(env: Environment, verb: str, **selection: Any) -> dict[str, Any]:
    answer = await env.http.post(f"/dead-letters/{verb}", json=selection)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_dead_letter_is_replayed_with_its_body_corrected_and_runs_once(env: Environment) -> None:
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish(
            [request(b'{"action_ref": "noop", "parameters": {"number": 7}', message_id="m")]
        )
    (letter,) = await letters(env, 1)
    body = letter["body"] + "}"
    before = (await env.stats("noop"))["total_enqueued"]
    assert (await select(env, "replay", ids=[letter["id"]], body=body))["done"] == 1
    # A second operator finds it gone.
    again = await select(env, "replay", ids=[letter["id"]], body=body)
    assert (again["done"], again["missing"]) == (0, [letter["id"]])
    # A copy of the message, as an executor that dies before it has deleted the row leaves one.
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([request(body.encode(), message_id="m")])
    await ask(env.amqp_url, lambda to: [request({"action_ref": "noop"}, reply_to=to)])
    assert (await env.stats("noop"))["total_enqueued"] == before + 2
    await letters(env, 0)
