"""Names: looked up in bounded number, once for all who ask, and nobody waits for one that hangs."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from turnstile.executor.webhooks import look_up
from turnstile.executor.webhooks.look_up import LookUps
from turnstile.executor.webhooks.places import Standing


class Resolver:
    """The system's resolver: counts what it is asked, and answers for names with `hangs` only once it may."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()

    def getaddrinfo(self, host: str, port: Any, *, type: int, flags: int = 0) -> list[Any]:  # noqa: A002
        if flags:
            raise socket.gaierror(socket.EAI_NONAME, "not an address")
        self.asked.append(host)
        if "hangs" in host:
            self.may_answer.wait(60)
        if "unknown" in host:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [
            (socket.AF_INET, type, 6, "", ("192.0.2.1", 0)),
            (socket.AF_INET, type, 6, "", ("192.0.2.1", 0)),
        ]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    yield resolver
    resolver.may_answer.set()


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("0x7f.1", "127.0.0.1")]
)
async def test_an_address_needs_no_thread(host: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", None)
    assert await LookUps().addresses(host) == [address]


async def test_many_who_ask_for_one_name_are_one_look_up(resolver: Resolver) -> None:
    look_ups = LookUps()
    asking = [asyncio.create_task(look_ups.addresses("hangs.example")) for _ in range(20)]
    await asyncio.sleep(0.05)
    # One that gives up takes it from nobody else.
    asking.pop().cancel()
    resolver.may_answer.set()
    assert await asyncio.gather(*asking) == [["192.0.2.1"]] * 19
    assert resolver.asked == ["hangs.example"]


async def test_names_that_hang_leave_threads_to_others_and_hold_no_process(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_up, "_THREADS", {Standing.NEW: 2, Standing.PROMPT: 1, Standing.SILENT: 1})
    monkeypatch.setattr(look_up, "PROMPT_SECONDS", 0.05)
    look_ups = LookUps()
    assert await look_ups.addresses("known.example") == ["192.0.2.1"]
    hanging = [asyncio.create_task(look_ups.addresses(f"hangs-{n}.example")) for n in range(5)]
    await asyncio.sleep(0.1)
    # No more than two threads hang; what is known to be resolved has one of its own.
    assert len(resolver.asked) == 3
    async with asyncio.timeout(10):
        assert await look_ups.addresses("known.example") == ["192.0.2.1"]
    names = [thread for thread in threading.enumerate() if thread.name.startswith("look-up of hangs")]
    assert len(names) == 2
    assert all(thread.daemon for thread in names)
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    resolver.may_answer.set()
    # Those that ended gave their threads back.
    async with asyncio.timeout(10):
        assert await look_ups.addresses("another.example") == ["192.0.2.1"]


async def test_a_name_that_nobody_knows_is_an_error_for_all_who_asked(resolver: Resolver) -> None:
    look_ups = LookUps()
    found = await asyncio.gather(
        *(look_ups.addresses("unknown.example") for _ in range(2)), return_exceptions=True
    )
    assert [type(error) for error in found] == [socket.gaierror] * 2
