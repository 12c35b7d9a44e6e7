"""The broker of an executor: each node and the management API are read once, judged by `CHECKS`."""

import asyncio
from functools import partial
from typing import Final
from urllib.parse import unquote

import httpx
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import ChannelNotFoundEntity

from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Link
from turnstile.common.broker.errors import BLOCKED, BrokerUnavailable, answered
from turnstile.common.broker.publisher import TO_NOWHERE
from turnstile.common.broker.topology import EXCHANGES, QUEUES, QueueType, declare_executor
from turnstile.common.urls import amqp_urls
from turnstile.executor.doctor.findings import FAILED, Checks, Facts, NotChecked, Status, Verdict
from turnstile.executor.permissions.broker import ManagementApi
from turnstile.executor.permissions.plan import SetupRefused
from turnstile.executor.permissions.policies import policies_that_drop
from turnstile.executor.settings import ExecutorSettings

_SECONDS: Final = 4.0
_TIMEOUTS: Final = BrokerTimeouts(connect_seconds=_SECONDS, rpc_seconds=_SECONDS)
_OLDEST: Final = (3, 10)


async def read_broker(facts: Facts, settings: ExecutorSettings) -> None:
    """Add what the nodes say, each asked by itself. Raises NotChecked."""
    nodes = amqp_urls(settings.amqp_url.get_secret_value())
    connections = [BrokerConnection(str(url), name="executor doctor", timeouts=_TIMEOUTS) for url in nodes]
    found = await asyncio.gather(*(each.connect() for each in connections), return_exceptions=True)
    links = [each for each in found if isinstance(each, Link)]
    try:
        facts["nodes"] = len(nodes)
        facts["unreachable"] = [str(each) for each in found if isinstance(each, BrokerUnavailable)]
        if not links:
            raise NotChecked("the broker cannot be used")
        facts["versions"] = sorted({link.server_version for link in links})
        await _read(facts, links[0], settings)
    finally:
        await asyncio.gather(*(link.close() for link in links))


async def _read(facts: Facts, link: Link, settings: ExecutorSettings) -> None:
    names = dict.fromkeys((*QUEUES, *EXCHANGES))
    missing = await asyncio.gather(*(_is_missing(link, name) for name in names))
    facts["missing"] = [name for name, is_missing in zip(names, missing, strict=True) if is_missing]
    facts["declaration"] = None
    if not facts["missing"]:
        # Everything exists, so nothing is created: the broker compares types, arguments and rights.
        facts["declaration"] = await _refusal_of_declaring(link, settings.queue_type)
    # At the end: from a connection that it blocks the broker reads nothing more.
    facts["publishing"] = await _refusal_of_publishing(link)


async def _refusal_of_publishing(link: Link) -> str | None:
    """Publish to no queue: only then does the broker tell a connection that it is blocked."""
    try:
        channel = await link.open_channel(confirms=True)
        # It still takes the first message.
        for _ in range(2):
            await answered(channel.publish_all([TO_NOWHERE]), _SECONDS)
    except BrokerUnavailable as error:
        return BLOCKED if link.blocked else str(error)
    return BLOCKED if link.blocked else None


async def _is_missing(link: Link, name: str) -> bool:
    async def declare(channel: AbstractChannel) -> None:
        if name in QUEUES:
            await channel.get_queue(name)
        if name in EXCHANGES:
            await channel.get_exchange(name)

    try:
        await link.declare(declare)
    except BrokerUnavailable as error:
        return isinstance(error.__cause__, ChannelNotFoundEntity)
    return False


async def _refusal_of_declaring(link: Link, queue_type: QueueType) -> str | None:
    try:
        await link.declare(partial(declare_executor, queue_type=queue_type))
    except BrokerUnavailable as error:
        return str(error)
    return None


async def read_policies(facts: Facts, settings: ExecutorSettings, management_url: str) -> None:
    """Add the policies that take effect on our queues. Raises NotChecked."""
    if not management_url:
        raise NotChecked(
            "TURNSTILE_MANAGEMENT_URL is not set, and AMQP does not show policies: set it to "
            "http://user:password@host:15672, of a user with the tag policymaker"
        )
    vhost = unquote(amqp_urls(settings.amqp_url.get_secret_value())[0].path.lstrip("/")) or "/"

    def read() -> list[str]:
        with ManagementApi(management_url, timeout_seconds=_SECONDS) as api:
            return policies_that_drop(api, vhost)

    try:
        facts["policies"] = await asyncio.to_thread(read)
    except (SetupRefused, httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise NotChecked(f"TURNSTILE_MANAGEMENT_URL: {reason}") from error


def _reachable(facts: Facts) -> Verdict:
    if facts.fault is not None:
        return FAILED, facts.fault
    unreachable = facts["unreachable"]
    if unreachable:
        status: Status = FAILED if len(unreachable) == facts["nodes"] else "warning"
        return status, "; ".join(dict.fromkeys(unreachable))
    return "ok", f"{facts['nodes']} of {facts['nodes']} nodes answer"


def _version(facts: Facts) -> Verdict:
    old = [each for each in facts["versions"] if _numbers(each) < _OLDEST]
    if old:
        oldest = ".".join(map(str, _OLDEST))
        return FAILED, f"RabbitMQ {old[0]} is too old: upgrade the broker to {oldest} or newer"
    return "ok", f"RabbitMQ {', '.join(facts['versions'])}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _publishing(facts: Facts) -> Verdict:
    reason = facts["publishing"]
    return ("ok", "the broker confirms messages") if reason is None else (FAILED, reason)


def _queues(facts: Facts) -> Verdict:
    if facts["declaration"] is not None:
        return FAILED, facts["declaration"]
    if facts["missing"]:
        return "warning", (
            f"the broker has no {', '.join(facts['missing'])}: an executor creates them when "
            "it starts ('executor serve'); rights in the vhost are not checked until then"
        )
    return "ok", "all exist with their types, and this user has the rights of an executor"


def _policies(facts: Facts) -> Verdict:
    found = facts["policies"]
    return (FAILED, "; ".join(found)) if found else ("ok", "no policy lets the broker drop messages")


BROKER_CHECKS: Final[Checks] = {
    "broker": _reachable,
    "broker version": _version,
    "publishing": _publishing,
    "queues and exchanges": _queues,
}
POLICY_CHECKS: Final[Checks] = {"policies": _policies}
