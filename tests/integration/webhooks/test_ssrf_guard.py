"""Webhooks go to public addresses only, and a name that hangs delays no other."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Any

import httpx
import pytest

from tests.integration.webhooks.receiver import Receiver
from turnstile.executor.webhooks import ssrf_guard
from turnstile.executor.webhooks.concurrency import Responsiveness
from turnstile.executor.webhooks.ssrf_guard import AddressRefused, GuardedTransport, NameResolver, is_public

PRIVATE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "192.0.0.8", "192.88.99.1", "192.0.2.1", "198.18.0.1", "198.51.100.7",
    "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd12:3456::1", "ff02::1", "2001:db8::1", "100::1",
    "64:ff9b:1::1", "3fff::1", "5f00::1", "2001:2::1",
    "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:53aa:64c:0:fbff:80ff:fffe",
]  # fmt: skip
PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "172.15.0.1", "172.32.0.1"),
    *("2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"),
]


def test_only_a_global_address_is_public() -> None:
    assert [address for address in PRIVATE if is_public(ip_address(address))] == []
    assert [address for address in PUBLIC if not is_public(ip_address(address))] == []


async def post(
    url: str, *, allow_private: bool = False, names: dict[str, list[list[str]]] | None = None
) -> httpx.Response:
    """Post through the guard; `names` says what each name resolves to, the first, the second time."""

    async def resolve(host: str) -> Sequence[str]:
        assert names is not None
        return names[host].pop(0)

    transport = GuardedTransport(allow_private=allow_private, resolve=resolve if names else None)
    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=10.0) as client:
        return await client.post(url, content=b"{}")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "0x7f.1", "127.1"],
)
async def test_no_spelling_of_loopback_is_called(receiver: Receiver, host: str) -> None:
    with pytest.raises(AddressRefused, match="TURNSTILE_WEBHOOK_ALLOW_PRIVATE"):
        await post(f"http://{host}:{receiver.port}/hook")
    assert receiver.received == []


async def test_a_name_that_resolves_to_a_private_address_is_not_called(receiver: Receiver) -> None:
    with pytest.raises(AddressRefused, match=r"inside\.example is at 127\.0\.0\.1"):
        await post(f"http://inside.example:{receiver.port}/", names={"inside.example": [["127.0.0.1"]]})
    assert receiver.received == []


async def test_the_checked_address_is_the_one_that_is_called(receiver: Receiver) -> None:
    """The name would lead elsewhere the second time it is looked up: it is looked up once."""
    names = {"rebinds.example": [["127.0.0.1"], ["192.0.2.1"]]}
    answered = await post(f"http://rebinds.example:{receiver.port}/hook", allow_private=True, names=names)
    assert answered.status_code == 200
    assert names == {"rebinds.example": [["192.0.2.1"]]}
    assert receiver.received[0].headers["host"] == f"rebinds.example:{receiver.port}"


async def test_the_next_address_is_tried_where_one_refuses(receiver: Receiver) -> None:
    names = {"two.example": [["127.0.0.2", "127.0.0.1"]]}
    answered = await post(f"http://two.example:{receiver.port}/hook", allow_private=True, names=names)
    assert (answered.status_code, len(receiver.received)) == (200, 1)


async def test_an_unknown_name_is_a_connect_error() -> None:
    async def nothing(host: str) -> Sequence[str]:
        raise OSError("no such name")

    async with httpx.AsyncClient(transport=GuardedTransport(allow_private=False, resolve=nothing)) as client:
        with pytest.raises(httpx.ConnectError, match="no address: no such name"):
            await client.post("http://unknown.example/")


class Resolver:
    """The system's resolver: records lookups; those of names with `hangs` wait until they are released."""

    def __init__(self) -> None:
        self.lookups: list[str] = []
        self.may_answer = threading.Event()

    def getaddrinfo(self, host: str, port: Any, *, type: int, flags: int = 0) -> list[Any]:  # noqa: A002
        if flags:
            raise socket.gaierror(socket.EAI_NONAME, "not an address")
        self.lookups.append(host)
        if "hangs" in host:
            self.may_answer.wait(60)
        if "unknown" in host:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, type, 6, "", ("192.0.2.1", 0))] * 2


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
    assert await NameResolver().addresses(host) == [address]


async def test_concurrent_look_ups_of_one_name_are_one(resolver: Resolver) -> None:
    look_ups = NameResolver()
    asking = [asyncio.create_task(look_ups.addresses("hangs.example")) for _ in range(20)]
    await asyncio.sleep(0.05)
    # A cancelled caller does not cancel the look-up of the others.
    asking.pop().cancel()
    resolver.may_answer.set()
    assert await asyncio.gather(*asking) == [["192.0.2.1"]] * 19
    assert resolver.lookups == ["hangs.example"]


async def test_hanging_names_leave_threads_to_others_and_do_not_keep_the_process(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ssrf_guard, "_THREADS", {Responsiveness.NEW: 2, Responsiveness.PROMPT: 1, Responsiveness.SILENT: 1}
    )
    monkeypatch.setattr(ssrf_guard, "PROMPT_SECONDS", 0.05)
    look_ups = NameResolver()
    assert await look_ups.addresses("known.example") == ["192.0.2.1"]
    hanging = [asyncio.create_task(look_ups.addresses(f"hangs-{n}.example")) for n in range(5)]
    await asyncio.sleep(0.1)
    # At most two threads wait for names that do not resolve; known names have a thread of their own.
    assert len(resolver.lookups) == 3
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
