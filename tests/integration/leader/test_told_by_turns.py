"""What a leader over the real ledger tells workers and listeners of an execution."""

import json
from typing import Any

from msgspec import structs

from tests.support.inbox import Installation, RunningLeader, ScriptedWorker, delete, request
from tests.support.traffic import until
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import Offer, Offers, ToSession
from turnstile.common.worker_wire import decode_to_session, encode_to_session
from turnstile.executor.leader.ports import CancelExecutions

_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_URL = "https://hooks.example.org/done"


async def _offer(worker: ScriptedWorker, execution_id: int) -> Offer:
    async def is_offered() -> bool:
        return execution_id in worker.offered

    await until(is_offered)
    return worker.offered[execution_id]


async def _event(leader: RunningLeader, execution_id: int) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        return [dict(each) for each in leader.broker.events if each["execution_id"] == execution_id]

    async def is_published() -> bool:
        return bool(found())

    await until(is_published)
    return found()[0]


async def test_an_offer_has_all_that_its_attempt_shows_also_behind_another_leader(
    installation: Installation,
) -> None:
    first = installation.lead("a")
    await installation.define("action", "a", retry={"max_attempts": 3}, submitter_keys=True, max_concurrent=1)
    wanted = structs.replace(
        request(
            "a", parameters={"n": 1}, metadata={"tag": "t"}, idempotency_key="once", concurrency_key="k"
        ),
        traceparent=_TRACE,
    )  # fmt: skip
    await installation.submit(wanted)
    worker = first.broker.worker
    worker.hello()
    offer = await _offer(worker, 1)
    # The next leader has the request in its rows only.
    await first.kill()
    second = installation.lead("b")
    other = second.broker.worker
    worker.offered.clear()
    second.broker.workers[worker.worker_id] = worker
    worker._put = second.broker.put
    worker.hello()
    again = await _offer(worker, 1)
    assert other.offered == {}
    for each in (offer, again):
        assert each.extra is not None
        extra = dict(each.extra)
        assert 0 <= extra.pop("waited") < 60
        assert json.loads(extra.pop("metadata")) == {"tag": "t"}
        assert extra == {
            "concurrency_key": "k", "retries_left": 2, "traceparent": _TRACE, "idempotency_key": "once",
        }  # fmt: skip
        message = ToSession(epoch=1, number=1, body=Offers(queue="a/k", at_once=1, offers=(each,)))
        (read,) = decode_to_session(encode_to_session([message]))
        assert isinstance(read.body, Offers)
        assert (read.body.offers[0].extra or {})["metadata"] == {"tag": "t"}


async def test_events_have_the_action_and_the_trace_of_the_request(installation: Installation) -> None:
    leader = installation.lead()
    await installation.define("action", "a")
    await installation.submit(
        structs.replace(request("a", callback_url=_URL), traceparent=_TRACE), request("a")
    )
    worker = leader.broker.worker
    worker.hello()
    await _offer(worker, 1)
    worker.end(1, result=b"7", log="the end", log_start=3)
    await _offer(worker, 2)
    worker.end(2, Status.FAILED, error=("ValueError", "why"))
    one, two = await _event(leader, 1), await _event(leader, 2)
    ids = await installation.fetch("SELECT id FROM ledger.action_id WHERE ref = 'a'")
    assert one["action_id"] == two["action_id"] == ids[0]["id"]
    assert (one["traceparent"], two["traceparent"]) == (_TRACE, None)
    assert (one["result"], two["error"]) == ("7", {"type": "ValueError", "message": "why"})
    steps = [(each.previous_status, each.status) for each in leader.broker.changes if each.execution_id == 1]
    assert steps == [
        (None, "queued"), ("queued", "scheduled"), ("scheduled", "running"), ("running", "completed"),
    ]  # fmt: skip
    assert await installation.fetch("SELECT execution_id, url FROM ledger.webhook") == [(1, _URL)]
    assert await installation.fetch("SELECT execution_id, attempt, start, text FROM ledger.log") == [
        (1, 1, 3, "the end")
    ]


async def test_an_end_that_no_worker_saw_is_published_with_its_trace_by_whoever_leads(
    installation: Installation,
) -> None:
    first = installation.lead("a")
    await installation.define("action", "a", max_concurrent=0)
    await installation.submit(structs.replace(request("a"), traceparent=_TRACE))
    await first.kill()
    second = installation.lead("b")
    await installation.inbox.decide([CancelExecutions(execution_ids=(1,), reason="enough")])
    event = await _event(second, 1)
    assert (event["status"], event["traceparent"]) == ("cancelled", _TRACE)

    async def is_forgotten() -> bool:
        return not await installation.fetch("SELECT FROM ledger.event")

    await until(is_forgotten)


async def test_a_deleted_action_is_forgotten_by_what_estimates(installation: Installation) -> None:
    leader = installation.lead()
    await installation.define("action", "a")
    await installation.submit(request("a"))
    worker = leader.broker.worker
    worker.hello()
    await _offer(worker, 1)
    worker.end(1)
    await _event(leader, 1)
    durations = leader.audience._durations
    assert len(durations.of("a")) == 1
    await installation.inbox.decide([delete("action", "a")])
    assert durations.of("a") == []
