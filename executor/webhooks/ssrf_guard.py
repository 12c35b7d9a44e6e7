"""Sends webhooks to public addresses only: a submitter's URL must not lead into our own network (SSRF).

In: a request to a name. Out: the same request to an address, or `AddressRefused`. The name is resolved here,
each address is checked, and the connection is made to the checked address itself, so a name that resolves to
another address a moment later (DNS rebinding) changes nothing. The certificate is still checked against the
name.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

import httpx

from turnstile.common.domain.errors import TurnstileError
from turnstile.executor.webhooks.concurrency import PROMPT_SECONDS, Responsiveness

Address: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]

_TRIED_MAX: Final = 3
"""Addresses of one name that are tried, one after another."""
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
"""IPv4 addresses behind a translator (RFC 6052), in the last 32 bits."""
_SPECIAL: Final = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "64:ff9b:1::/48",
        "2001::/23",
        "3fff::/20",
        "5f00::/16",
    )
)
"""Special-purpose networks (RFC 6890 and its successors) that not every Python version knows."""


class AddressRefused(TurnstileError):
    """Webhooks to this address are refused."""


def is_public(address: Address) -> bool:
    """Return whether an address is public on the internet, whatever its form."""
    match address:
        case IPv6Address() if (embedded := _embedded(address)) is not None:
            return is_public(embedded)
        case IPv6Address() if address.is_site_local:
            return False
        case _ if any(address in network for network in _SPECIAL):
            return False
        case _:
            return address.is_global and not (
                address.is_multicast or address.is_reserved or address.is_unspecified
            )


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends each request to a checked address of its host. No connection is reused, so names share none."""

    def __init__(self, *, allow_private: bool, resolve: Resolve | None = None) -> None:
        self._allow_private = allow_private
        self._resolve = resolve or NameResolver().addresses
        self._connections = httpx.AsyncHTTPTransport(
            trust_env=False, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send; raises AddressRefused, and what httpx raises."""
        host = request.url.raw_host.decode("ascii").strip("[]")
        addresses = await self._allowed(host)
        *others, last = addresses[:_TRIED_MAX]
        for address in others:
            try:
                return await self._connections.handle_async_request(_pinned(request, host, address))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._connections.handle_async_request(_pinned(request, host, last))

    async def aclose(self) -> None:
        """Close what is open."""
        await self._connections.aclose()

    async def _allowed(self, host: str) -> Sequence[str]:
        try:
            found = await self._resolve(host)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(f"{host}: no address: {error}") from None
        allowed = [one for one in found if self._allow_private or is_public(ip_address(one))]
        if not allowed:
            raise AddressRefused(
                f"{host} is at {', '.join(found[:3]) or 'no address'}: private addresses are not called; "
                "use a public URL, or set TURNSTILE_WEBHOOK_ALLOW_PRIVATE=true and replay it"
            )
        return allowed


def _pinned(request: httpx.Request, host: str, address: str) -> httpx.Request:
    # The headers hold `Host` already, and the TLS handshake names the host and checks its certificate.
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": host},
    )


def _embedded(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


_THREADS: Final = {Responsiveness.NEW: 512, Responsiveness.PROMPT: 64, Responsiveness.SILENT: 32}
"""Upper bounds; only hanging names need so many."""
_REMEMBERED_MAX: Final = 10_000

_Found: TypeAlias = list[str] | OSError | UnicodeError


class NameResolver:
    """Resolves names: a name that hangs delays neither other names nor the end of the process.

    The system's resolver cannot be interrupted, so each running look-up has a thread, at most one per host; a
    host's last look-up decides which share of the threads serves it. Literal addresses need none.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = {
            responsiveness: asyncio.Semaphore(count) for responsiveness, count in _THREADS.items()
        }
        self._lookups: dict[str, asyncio.Future[_Found]] = {}
        self._responsiveness: dict[str, Responsiveness] = {}

    async def addresses(self, host: str) -> Sequence[str]:
        """Return the addresses of a host, each once; raises OSError or UnicodeError where it has none."""
        with suppress(OSError, UnicodeError):
            return _distinct(host, numeric=True)
        found = self._lookups.get(host)
        if found is None:
            responsiveness = self._responsiveness.get(host, Responsiveness.NEW)
            await self._threads[responsiveness].acquire()
            found = self._lookups.get(host)
            if found is None:
                found = self._start(host, responsiveness)
            else:
                self._threads[responsiveness].release()
        # A caller that is cancelled leaves the look-up to the other callers.
        match await asyncio.shield(found):
            case list() as addresses:
                return addresses
            case error:
                raise error

    def _start(self, host: str, responsiveness: Responsiveness) -> "asyncio.Future[_Found]":
        future: asyncio.Future[_Found] = self._loop.create_future()
        self._lookups[host] = future
        hangs = self._loop.call_later(PROMPT_SECONDS, self._note, host, Responsiveness.SILENT)

        def ended(found: _Found) -> None:
            if not hangs.cancelled() and hangs.when() > self._loop.time():
                self._note(host, Responsiveness.PROMPT)
            hangs.cancel()
            del self._lookups[host]
            self._threads[responsiveness].release()
            if not future.done():
                future.set_result(found)

        def look_up() -> None:
            found = _look_up(host)
            # The loop may be closed by now.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(ended, found)

        # A daemon thread, so that the process can end without it.
        threading.Thread(target=look_up, name=f"look-up of {host[:60]}", daemon=True).start()
        return future

    def _note(self, host: str, responsiveness: Responsiveness) -> None:
        self._responsiveness.pop(host, None)
        self._responsiveness[host] = responsiveness
        if len(self._responsiveness) > _REMEMBERED_MAX:
            del self._responsiveness[next(iter(self._responsiveness))]


def _look_up(host: str) -> _Found:
    try:
        return _distinct(host)
    except (OSError, UnicodeError) as error:
        return error
    except Exception as error:  # noqa: BLE001  (a caller waits for the result)
        return OSError(f"{type(error).__name__}: {error}")


def _distinct(host: str, *, numeric: bool = False) -> list[str]:
    flags = socket.AI_NUMERICHOST if numeric else 0
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    # A scoped address, like fe80::1%eth0, is link-local; its scope is not needed.
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
