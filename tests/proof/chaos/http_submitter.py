"""Sends the load over HTTP: one request after the other, again at the next executor where there is no answer.

In: the steps of one submitter, or of the operator who changes actions. Out: entries in the `Log`. Every
submission bears a key, so a repetition is the same execution. An answer that no fault excuses is noted.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import httpx

from tests.proof.chaos.load import Cancel, Change, Submit
from tests.proof.chaos.sent import Log, named

_ANSWER_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 0.2


class HttpSubmitter:
    """Asks the executors in turn."""

    def __init__(self, http: httpx.AsyncClient, executor_urls: Sequence[str], log: Log) -> None:
        self._http = http
        self._urls = executor_urls
        self._log = log
        self._turn = 0

    async def send(self, steps: Sequence[Submit | Cancel | Change], began: float) -> None:
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
        sent = self._log.sending(step)
        answer = await self._ask("POST", "/executions", sent.body)
        if answer.status_code not in (httpx.codes.OK, httpx.codes.ACCEPTED):
            self._refused(f"submission {step.number}", answer)
        elif sent.confirmed_at is None:
            sent.confirmed_at = datetime.now(UTC)
            sent.execution_id = answer.json()["id"]
        elif sent.execution_id != answer.json()["id"]:
            self._refused(f"submission {step.number}, of execution {sent.execution_id} before", answer)

    async def _cancel(self, step: Cancel) -> None:
        name = named(step, self._log)
        if name is None:
            return
        answer = await self._ask("POST", f"/executions/{name['execution_id']}/cancel", {})
        self._log.cancels += 1
        if answer.status_code not in (httpx.codes.ACCEPTED, httpx.codes.CONFLICT):
            self._refused(f"cancel of execution {name['execution_id']}", answer)

    async def _change(self, step: Change) -> None:
        answer = await self._ask("PATCH", f"/actions/{step.action_ref}", step.fields)
        self._log.changes += 1
        if answer.status_code != httpx.codes.OK:
            self._refused(f"change of {step.action_ref}", answer)

    def _refused(self, what: str, answer: httpx.Response) -> None:
        self._log.refused.append(f"{what}: {answer.status_code} {answer.text[:300]}")

    async def _ask(self, method: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Ask one executor after the other until one of them answers and is not unavailable."""
        while True:
            url = self._urls[self._turn % len(self._urls)]
            self._turn += 1
            with suppress(httpx.HTTPError):
                answer = await self._http.request(
                    method, f"{url}/api/v1{path}", json=body, timeout=_ANSWER_SECONDS
                )
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    return answer
            self._log.repeated += 1
            await asyncio.sleep(_AGAIN_SECONDS)
