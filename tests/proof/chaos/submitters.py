"""Sends the load: each submitter in a task of its own, over AMQP or HTTP, and logs what was confirmed.

In: the planned steps. Out: the `SubmitLog`, the witness of what was asked for. Each submitter sends step by
step, so what it sent first arrives first. A repetition has the same message id, or the same idempotency key,
so that nothing is doubled.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

from tests.proof.chaos.load import SUBMITTERS, Cancel, Change, Step, Submit
from tests.support.traffic import cancel_request, publishing, request
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import declare_executor

_ANSWER_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 0.2


@dataclass(slots=True, kw_only=True)
class Sent:
    """One submission: the request, and what is known to have been admitted."""

    submit: Submit
    body: Mapping[str, Any]
    confirmed_at: datetime | None = None
    execution_id: int | None = None


@dataclass(slots=True, kw_only=True)
class SubmitLog:
    """What all submitters did, in the order of each."""

    sent: dict[int, Sent] = field(default_factory=dict)
    """By the number of the submission; one that is sent twice has one entry."""
    refused: list[str] = field(default_factory=list)
    """Answers that no fault explains."""
    repeated: int = 0
    """How often something was sent again because its fate was unknown."""
    cancels: int = 0
    cancelled: set[int] = field(default_factory=set)
    """The numbers of the submissions that were to be cancelled."""
    changes: int = 0

    @property
    def confirmed(self) -> int:
        """How many submissions are confirmed."""
        return sum(sent.confirmed_at is not None for sent in self.sent.values())

    def sending(self, submit: Submit) -> Sent:
        """Return the entry of a submission, created when it is sent for the first time."""
        known = self.sent.get(submit.number)
        if known is None:
            due = {}
            if submit.run_in_seconds is not None:
                run_at = datetime.now(UTC) + timedelta(seconds=submit.run_in_seconds)
                due = {"run_at": run_at.isoformat()}
            known = self.sent[submit.number] = Sent(submit=submit, body={**submit.body, **due})
        return known

    def target_of(self, cancel: Cancel) -> dict[str, Any] | None:
        """Return how a cancel names its execution; None where its id is not known."""
        self.cancelled.add(cancel.of.number)
        if cancel.by_key:
            return {"idempotency_key": cancel.of.body["idempotency_key"]}
        known = self.sent.get(cancel.of.number)
        return None if known is None or known.execution_id is None else {"execution_id": known.execution_id}


async def send_all(
    amqp_url: str, http: httpx.AsyncClient, http_urls: Sequence[str], steps: Sequence[Step], log: SubmitLog
) -> None:
    """Send every step at its time from now on; return when each has its answer."""
    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as tasks:
        for name, way in SUBMITTERS.items():
            own = [step for step in steps if not isinstance(step, Change) and step.submitter == name]
            if way == "amqp":
                sending = _send_messages(amqp_url, own, log, began)
            else:
                sending = HttpSubmitter(http, http_urls, log).send(own, began)
            tasks.create_task(sending, name=f"submitter-{name}")
        changes = [step for step in steps if isinstance(step, Change)]
        tasks.create_task(HttpSubmitter(http, http_urls, log).send(changes, began), name="operator")


@dataclass(slots=True)
class HttpSubmitter:
    """Sends requests over HTTP one by one; without an answer again, to the next executor."""

    http: httpx.AsyncClient
    urls: Sequence[str]
    log: SubmitLog
    _attempts: int = 0

    async def send(self, steps: Sequence[Step], began: float) -> None:
        """Send each step when it is due, counted from `began`, and return when all are answered."""
        for step in steps:
            await asyncio.sleep(began + step.at_seconds - asyncio.get_running_loop().time())
            match step:
                case Submit():
                    await self._submit(step)
                case Cancel():
                    await self._cancel(step)
                case Change():
                    await self._change(step)

    async def _submit(self, step: Submit) -> None:
        sent = self.log.sending(step)
        answer = await self._request("POST", "/executions", sent.body)
        if answer.status_code not in (httpx.codes.OK, httpx.codes.ACCEPTED):
            self._refused(f"submission {step.number}", answer)
        elif sent.confirmed_at is None:
            sent.confirmed_at = datetime.now(UTC)
            sent.execution_id = answer.json()["id"]
        elif sent.execution_id != answer.json()["id"]:
            self._refused(f"submission {step.number}, of execution {sent.execution_id} before", answer)

    async def _cancel(self, step: Cancel) -> None:
        target = self.log.target_of(step)
        if target is None:
            return
        answer = await self._request("POST", f"/executions/{target['execution_id']}/cancel", {})
        self.log.cancels += 1
        if answer.status_code not in (httpx.codes.ACCEPTED, httpx.codes.CONFLICT):
            self._refused(f"cancel of execution {target['execution_id']}", answer)

    async def _change(self, step: Change) -> None:
        answer = await self._request(step.method, f"/{step.path}", step.fields)
        self.log.changes += 1
        if answer.status_code != httpx.codes.OK:
            self._refused(f"change of {step.path} to {step.fields}", answer)

    def _refused(self, what: str, answer: httpx.Response) -> None:
        self.log.refused.append(f"{what}: {answer.status_code} {answer.text[:300]}")

    async def _request(self, method: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Try one executor after the other until one of them answers and is not unavailable."""
        while True:
            url = f"{self.urls[self._attempts % len(self.urls)]}/api/v1{path}"
            self._attempts += 1
            with suppress(httpx.HTTPError):
                answer = await self.http.request(method, url, json=body, timeout=_ANSWER_SECONDS)
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    return answer
            self.log.repeated += 1
            await asyncio.sleep(_AGAIN_SECONDS)


async def _send_messages(
    amqp_url: str, steps: Sequence[Submit | Cancel], log: SubmitLog, began: float
) -> None:
    """Send each step when it is due, counted from `began`, and return when all are confirmed."""
    async with publishing(amqp_url) as publisher:
        for batch in _batches(steps):
            await asyncio.sleep(began + batch[0].at_seconds - asyncio.get_running_loop().time())
            messages = [message for step in batch if (message := _message(step, log)) is not None]
            await _publish(publisher, messages, log)
            now = datetime.now(UTC)
            for step in batch:
                if isinstance(step, Submit) and log.sent[step.number].confirmed_at is None:
                    log.sent[step.number].confirmed_at = now


def _batches(steps: Sequence[Submit | Cancel]) -> Iterator[list[Submit | Cancel]]:
    """Group what is due at the same instant."""
    batch: list[Submit | Cancel] = []
    for step in steps:
        if batch and step.at_seconds > batch[0].at_seconds:
            yield batch
            batch = []
        batch.append(step)
    if batch:
        yield batch


async def _publish(publisher: Publisher, messages: Sequence[Outgoing], log: SubmitLog) -> None:
    """Publish until all are confirmed: always from the first one that may be missing, to keep the order."""
    pending = list(messages)
    while pending:
        try:
            outcomes = await publisher.publish(pending)
        except BrokerUnavailable:
            log.repeated += 1
            continue
        missing = [number for number, o in enumerate(outcomes) if o is not Publication.CONFIRMED]
        pending = pending[missing[0] :] if missing else []
        if pending:
            # The queue is not declared yet, or a fault has deleted it.
            log.repeated += 1
            with suppress(BrokerUnavailable):
                await publisher.declare(declare_executor)


def _message(step: Submit | Cancel, log: SubmitLog) -> Outgoing | None:
    match step:
        case Submit():
            return request(log.sending(step).body, message_id=step.message_id)
        case Cancel():
            target = log.target_of(step)
            if target is None:
                return None
            log.cancels += 1
            return cancel_request(target, message_id=f"cancel of {step.of.message_id}")
