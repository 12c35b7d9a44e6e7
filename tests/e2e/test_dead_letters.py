"""Messages that no service could use: stored with their reasons, replayed once they are mended, pruned."""

from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.test_early_messages import completion
from tests.e2e.test_messages import BAD
from tests.support.stage import Stage
from tests.support.traffic import ask, publishing, request, until
from turnstile.common.messages import CANCEL_REQUESTED, COMPLETED

pytestmark = pytest.mark.asyncio(loop_scope="module")
STAGE: dict[str, Any] = {}


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def no_letters(stage: Stage) -> None:
    """Each test begins without any."""
    await dealt(stage, "purge", all=True)


async def letters(stage: Stage, count: int, **query: Any) -> list[dict[str, Any]]:
    """Wait until there are so many, and return them."""
    found: list[dict[str, Any]] = []

    async def are_there() -> bool:
        answer = await stage.http.get("/dead-letters", params={"limit": 1000, **query})
        assert answer.status_code == 200, answer.text
        found[:] = answer.json()["items"]
        return len(found) >= count

    await until(are_there, f"{count} dead letters", deadline_seconds=30)
    assert len(found) == count
    return found


async def dealt(stage: Stage, verb: str, **selection: Any) -> dict[str, Any]:
    answer = await stage.http.post(f"/dead-letters/{verb}", json=selection)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_each_kind_of_bad_request_is_listed_with_its_reason_and_shown(stage: Stage) -> None:
    sent = {
        name: request(body, message_id=f"bad-{place}", **properties)
        for place, (name, body, properties, _, _) in enumerate(BAD)
    }
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish(list(sent.values()))
    found = {letter["message_id"]: letter for letter in await letters(stage, len(BAD))}
    assert set(found) == {message.message_id for message in sent.values()}
    for name, body, _, code, word in BAD:
        letter = found[sent[name].message_id]
        assert (letter["code"], letter["body_bytes"]) == (code, len(body)), name
        assert word in letter["error"], name
        assert letter["original_routing_key"] == "execution.requested"
        assert letter["died_at"] is not None
        shown = (await stage.http.get(f"/dead-letters/{letter['id']}")).json()
        assert shown["body_encoding"] == ("base64" if name == "not UTF-8" else "text"), name
        if name not in ("not UTF-8", "10 MB"):
            assert shown["body"].encode() == body, name
    codes = [letter["message_id"] for letter in await letters(stage, 1, code="too_large")]
    assert codes == [sent["10 MB"].message_id]
    assert (await dealt(stage, "purge", all=True))["done"] == len(BAD)


async def test_requests_for_an_action_that_comes_later_are_sent_again_and_run_once_in_their_order(
    stage: Stage,
) -> None:
    body = {"action_ref": "later", "parameters": {}}
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish([request({**body, "metadata": {"n": n}}) for n in range(20)])
    await letters(stage, 20, code="unknown_action")
    # Sent again too early they die again, for the same reason.
    assert (await dealt(stage, "replay", all=True))["done"] == 20
    await letters(stage, 20, code="unknown_action")
    await stage.put("later", max_concurrent=1, entrypoint="tests.e2e.actions:noop")
    assert await dealt(stage, "replay", code="unknown_action") == {
        "done": 20,
        "refused": [],
        "missing": [],
        "left": 0,
    }
    await letters(stage, 0)

    async def are_admitted() -> bool:
        return bool((await stage.stats("later"))["total_enqueued"] == 20)

    await until(are_admitted, "all are admitted")
    rows = await stage.history.rows(
        "SELECT e.id, (e.metadata->>'n')::int AS n FROM execution e JOIN action a ON a.id = e.action_id"
        " WHERE a.ref = 'later' ORDER BY e.id"
    )
    assert [row["n"] for row in rows] == list(range(20))
    assert set(await stage.ended(*(row["id"] for row in rows))) == {"completed"}


async def test_what_spoke_of_nothing_does_its_work_when_it_is_sent_again_in_time(stage: Stage) -> None:
    execution_id = await stage.history.value("SELECT last_value + 1 FROM execution_id_seq")
    worn: dict[str, Any] = {"headers": {"x-tries": 30}}
    cancel = replace(
        request({"execution_id": execution_id, "reason": "in vain"}, message_id="cancel", **worn),
        type=CANCEL_REQUESTED,
        routing_key=CANCEL_REQUESTED,
    )
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish([cancel, completion(execution_id, message_id="completion", **worn)])
    found = {letter["message_id"]: letter for letter in await letters(stage, 2, code="unknown_execution")}
    assert {letter["type"] for letter in found.values()} == {CANCEL_REQUESTED, COMPLETED}
    assert {letter["tries"] for letter in found.values()} == {30}
    assert await stage.submit("hold") == execution_id
    assert await dealt(stage, "replay", ids=["cancel", "nothing"]) == {
        "done": 1,
        "refused": [],
        "missing": ["nothing"],
        "left": 0,
    }
    assert await stage.ended(execution_id) == ["cancelled"]
    assert (await dealt(stage, "replay", ids=["completion"]))["done"] == 1
    await letters(stage, 0)


async def test_every_page_of_letters_comes_once(stage: Stage) -> None:
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish([request(b"{", message_id=f"page-{n}") for n in range(7)])
    await letters(stage, 7)
    seen, cursor = [], None
    while True:
        query = {"limit": 3} | ({} if cursor is None else {"cursor": cursor})
        page = (await stage.http.get("/dead-letters", params=query)).json()
        seen += [letter["message_id"] for letter in page["items"]]
        assert page["total"] == 7
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"page-{n}" for n in range(7)]
    first = (await stage.http.get("/dead-letters", params={"limit": 1})).json()
    assert (await dealt(stage, "purge", ids=seen))["done"] == 7
    behind = await stage.http.get("/dead-letters", params={"cursor": first["next_cursor"]})
    assert behind.json() == {"items": [], "next_cursor": None, "total": 0}


async def test_a_letter_is_replayed_with_its_body_corrected_and_runs_once(stage: Stage) -> None:
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish(
            [request(b'{"action_ref": "noop", "parameters": {"number": 7}', message_id="m")]
        )
    (letter,) = await letters(stage, 1)
    body = letter["body"] + "}"
    before = (await stage.stats("noop"))["total_enqueued"]
    assert (await dealt(stage, "replay", ids=[letter["id"]], body=body))["done"] == 1
    # A second operator who was about to do the same finds it gone.
    again = await dealt(stage, "replay", ids=[letter["id"]], body=body)
    assert (again["done"], again["missing"]) == (0, [letter["id"]])
    # A copy of the message, as an executor that dies before it has deleted the row leaves one.
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish([request(body.encode(), message_id="m")])
    await ask(stage.amqp_url, lambda to: [request({"action_ref": "noop"}, reply_to=to)])
    assert (await stage.stats("noop"))["total_enqueued"] == before + 2
    await letters(stage, 0)


async def test_a_refusal_by_a_full_queue_is_an_answer_and_a_dead_letter_only_where_no_answer_was_asked_for(
    stage: Stage,
) -> None:
    await stage.put("full", max_concurrent=0, when_full="reject", max_queued=1)
    waiting = await stage.submit("full")
    body = {"action_ref": "full"}
    replies = await ask(stage.amqp_url, lambda to: [request(body, reply_to=to) for _ in range(300)])
    assert {(kind, reply["code"]) for kind, reply in replies} == {("execution.rejected", "queue_full")}
    silent = [request(body, message_id=f"silent-{n}") for n in range(300)]
    # What is wrong with a request is wrong whoever hears of it.
    unknown = await ask(stage.amqp_url, lambda to: [request({"action_ref": "nobody"}, reply_to=to)])
    assert unknown[0][1]["code"] == "unknown_action"
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish(silent)
    found = await letters(stage, 301)
    assert [letter["code"] for letter in found] == ["unknown_action", *["queue_full"] * 300]
    assert [letter["message_id"] for letter in found[1:]] == [message.message_id for message in silent]
    await stage.cancel(waiting)
    # As if they had been there for long: the watchdog prunes them.
    await stage.history.rows(
        "UPDATE dead_letter SET stored_at = stored_at - interval '31 d' WHERE code = 'queue_full'"
    )
    kept = "SELECT array_agg(DISTINCT code) FROM dead_letter"

    async def are_pruned() -> bool:
        return bool(await stage.history.value(kept) == ["unknown_action"])

    await until(are_pruned, "old letters are pruned", deadline_seconds=30)
