"""Decides to which addresses a webhook may go: a stranger's URL must not lead into our own network.

In: a request to a name. Out: the same request to an address, or `AddressRefused`. The name is resolved here,
each address is judged, and the connection is made to the judged address itself: a name that resolves to
something else a moment later (DNS rebinding) changes nothing. The certificate is still checked against the
name.
"""

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

import httpx

from turnstile.common.domain.errors import TurnstileError
from turnstile.executor.webhooks.look_up import LookUps

Address: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]

_TRIED_MAX: Final = 3
"""Addresses of one name that are tried, one after the other."""
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
"""Where a translator answers for IPv4 addresses (RFC 6052): the last 32 bits."""
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
"""Special purposes (RFC 6890 and its successors) that not every Python version knows."""


class AddressRefused(TurnstileError):
    """Nothing may be sent there."""


def is_public(address: Address) -> bool:
    """Tell whether an address is anybody's on the internet, whatever form it has."""
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
    """Sends each request to a judged address of its host. No connection is kept, so names share none."""

    def __init__(self, *, allow_private: bool, resolve: Resolve | None = None) -> None:
        self._allow_private = allow_private
        self._resolve = resolve or LookUps().addresses
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
