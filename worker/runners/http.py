"""Runs actions that are a POST to a URL.

In: a `Call`; the request body is `{execution_id, attempt, action_ref, parameters}`, and `Idempotency-Key`
names execution and attempt. Out: the JSON body of a 2xx response. A stop closes the connection. Redirects are
not followed.
"""

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

import httpx
from pydantic_core import to_json

from turnstile.common.retry_after import retry_after_seconds
from turnstile.worker.core.outcomes import Completed, Failed
from turnstile.worker.logs import LogTail
from turnstile.worker.outcome import (
    OutcomeCatcher,
    failed,
    invalid_result,
    outcome_of_text,
    result_too_large,
)
from turnstile.worker.runners.base import (
    Call,
    ResultBuffer,
    RunLimits,
    RunReport,
    run_until_stopped,
)

_CONNECT_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 300.0
"""Longest silence of the server for an action that has no timeout."""
_ERROR_BODY_BYTES: Final = 4096
# Request Timeout, Too Early, Too Many Requests: the same request may succeed later.
_RETRYABLE_4XX: Final = {408, 425, 429}


class HttpRunner:
    """Posts to `call.entrypoint`; the caller closes the client."""

    def __init__(self, limits: RunLimits, client: httpx.AsyncClient) -> None:
        self._limits = limits
        self._client = client

    async def run(self, call: Call) -> RunReport:
        """Run one attempt."""
        log = call.open_log(self._limits.log_bytes_max)
        task = asyncio.create_task(self._outcome(call, log), name=call.name)
        ended = await run_until_stopped(task, call.stop, call.run_seconds_max, self._limits.grace_seconds)
        return RunReport.of(ended, log)

    async def _outcome(self, call: Call, log: LogTail) -> Completed | Failed:
        catcher = OutcomeCatcher(result_bytes_max=self._limits.result_bytes_max, write_log=log.write_line)
        with catcher:
            try:
                catcher.outcome = await self._post(call, log)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                catcher.outcome = failed(type(error).__name__, str(error), retryable=False)
            except httpx.HTTPError as error:
                reason = str(error) or "no response"
                catcher.outcome = failed(type(error).__name__, f"POST {call.entrypoint}: {reason}")
        return catcher.outcome

    async def _post(self, call: Call, log: LogTail) -> Completed | Failed:
        started_at = time.monotonic()
        timeout = httpx.Timeout(call.timeout_seconds or _IDLE_SECONDS, connect=_CONNECT_SECONDS)
        async with self._client.stream(
            "POST", str(call.entrypoint), content=_body(call), headers=_headers(call), timeout=timeout
        ) as response:
            bytes_max = self._limits.result_bytes_max if response.is_success else _ERROR_BODY_BYTES
            body = ResultBuffer(bytes_max)
            async for chunk in response.aiter_raw():
                body.write(chunk)
                if not body.is_complete:
                    break
        seconds = time.monotonic() - started_at
        log.write_line(f"POST {call.entrypoint}: {response.status_code} after {seconds:.3f} s")
        if not response.is_success:
            log.write(body.content())
            return _refused(response, body.content())
        if response.headers.get("content-encoding", "identity") != "identity":
            return invalid_result("the server compressed it although `Accept-Encoding: identity` was sent")
        if not body.is_complete:
            return result_too_large(body.size_bytes, bytes_max)
        return outcome_of_text(body.content(), bytes_max)


def _body(call: Call) -> bytes:
    known = {"execution_id": call.execution_id, "attempt": call.attempt, "action_ref": call.action_ref}
    # The parameters are JSON text already: they are inserted without parsing.
    return to_json(known)[:-1] + b',"parameters":' + call.parameters_json.encode() + b"}"


def _headers(call: Call) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        # A compressed response could be a thousand times the limit when unpacked.
        "Accept-Encoding": "identity",
        "Idempotency-Key": f"{call.execution_id}-{call.attempt}",
    }
    return headers | ({"traceparent": call.traceparent} if call.traceparent else {})


def _refused(response: httpx.Response, body: bytes) -> Failed:
    status = response.status_code
    text = body.decode(errors="replace").strip()
    return failed(
        "HttpStatus",
        f"{status} {response.reason_phrase}: {text}".rstrip(": "),
        retryable=status >= 500 or status in _RETRYABLE_4XX,
        delay_seconds=retry_after_seconds(response.headers.get("retry-after"), datetime.now(UTC)),
    )
