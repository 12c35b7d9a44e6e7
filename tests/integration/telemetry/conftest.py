"""One executor and one worker with all telemetry on, for all tests of this folder."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.telemetry.receiver import Receiver, receiving
from tests.support.processes import System, running
from tests.support.sources import LentUrls
from turnstile.client import AsyncClient

TOKEN = "a-secret-token"
_SEEN_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """The samples of one service, by name and labels."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def since(self, before: "Scrape", name: str, **labels: str) -> float:
        """The increase of this counter."""
        return (self.value(name, **labels) or 0) - (before.value(name, **labels) or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A running system and its telemetry."""

    system: System
    client: AsyncClient
    http: httpx.AsyncClient
    receiver: Receiver

    async def executor(self, name: str, value: float, **labels: str) -> Scrape:
        """Scrape the executor until this metric has this value."""
        return await self._scrape(self.system.http_url, name, value, labels)

    async def worker(self, name: str, value: float, **labels: str) -> Scrape:
        """Scrape the worker until this metric has this value."""
        return await self._scrape(self.system.workers[0].http_url, name, value, labels)

    async def _scrape(self, url: str, name: str, value: float, labels: dict[str, str]) -> Scrape:
        async with asyncio.timeout(_SEEN_SECONDS):
            while (scrape := await self._scraped(f"{url}/metrics")).value(name, **labels) != value:
                await asyncio.sleep(0.05)
        return scrape

    async def _scraped(self, url: str) -> Scrape:
        answer = await self.http.get(url)
        assert answer.status_code == 200, answer.text
        return Scrape(samples=samples_in(answer.text))


def samples_in(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples that a service exposes, by name and labels."""
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


@pytest.fixture(scope="package")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def observed(lent_urls: LentUrls, receiver: Receiver) -> AsyncIterator[Observed]:
    settings = {
        "TURNSTILE_API_TOKENS": TOKEN,
        "TURNSTILE_LOG_FORMAT": "json",
        "TURNSTILE_LOG_LEVEL": "DEBUG",
        "TURNSTILE_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    with lent_urls() as (database_url, amqp_url):
        async with (
            running(database_url, amqp_url, settings=settings) as system,
            AsyncClient(amqp_url=amqp_url, http_url=system.http_url, token=TOKEN) as client,
            httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http,
        ):
            yield Observed(system=system, client=client, http=http, receiver=receiver)


def secrets_of(system: System) -> list[str]:
    """Secrets that no log line may contain."""
    passwords = [urlsplit(url).password for url in (system.database_url, system.amqp_url)]
    return [TOKEN, *(password for password in passwords if password)]
