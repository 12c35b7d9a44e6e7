"""Reads all that an executor stands on, at once and within a bound, and judges it.

In: settings and environment. Out: one finding for each check. Changes nothing; a server that does not answer
costs at most `_SECONDS`.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Final

from turnstile.executor.doctor import database, host
from turnstile.executor.doctor.broker import BROKER_CHECKS, POLICY_CHECKS, read_broker, read_policies
from turnstile.executor.doctor.findings import Facts, Finding, NotChecked, judged
from turnstile.executor.settings import ExecutorSettings

_SECONDS: Final = 12.0


async def examine(
    settings: ExecutorSettings, *, management_url: str, environment: Mapping[str, str]
) -> list[Finding]:
    """Return the findings: this host, the database, the broker."""
    of_host, of_database, of_broker, of_policies = Facts(), Facts(), Facts(), Facts()
    host.read_host(of_host, settings, environment)
    await asyncio.gather(
        _within_bound(of_database, database.read_database(of_database, settings)),
        _within_bound(of_broker, read_broker(of_broker, settings)),
        _within_bound(of_policies, read_policies(of_policies, settings, management_url)),
    )
    return [
        *judged(host.CHECKS, of_host),
        *judged(database.CHECKS, of_database),
        *judged(BROKER_CHECKS, of_broker),
        *judged(POLICY_CHECKS, of_policies),
    ]


async def _within_bound(facts: Facts, reading: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(_SECONDS):
            await reading
    except NotChecked as missing:
        facts.why_not = str(missing)
    except TimeoutError:
        facts.why_not = "the server does not answer"
        facts.fault = (
            f"no answer within {_SECONDS:g} s: look into the log of the server, and into the network"
        )
