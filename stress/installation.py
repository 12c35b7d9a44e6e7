"""Where a run takes place: the addresses of an installation, and what may be done to it.

In: URLs that somebody gave, or those of a private system. Out: one value that `drive` talks to. Only a
private installation has a `Breaker`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from turnstile.stress.recording import InjectedFault
from turnstile.stress.stage import PlannedFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A running system, as its users see it."""

    amqp_url: SecretStr
    http_urls: tuple[str, ...]
    """Of the executors; any of them may be down for a while."""
    api_token: SecretStr | None = None
    marks_folder: Path | None = None
    """Where the actions on this host write their starts and stops; None: they tell them in their results."""
    watchdog_seconds: float = 1.0
    """The tick of its watchdog."""
    lease_seconds: float = 15.0

    @property
    def is_on_this_host(self) -> bool:
        """Whether all its executors answer on loopback addresses."""
        return all(_is_loopback(urlsplit(url).hostname or "") for url in self.http_urls)

    def describe(self) -> str:
        """Say which one it is, without a password."""
        broker = urlsplit(self.amqp_url.get_secret_value())
        where = f"{broker.hostname}:{broker.port}" if broker.port else str(broker.hostname)
        return f"{', '.join(self.http_urls)}, broker {where}, vhost {unquote(broker.path[1:]) or '/'}"


class Breaker(Protocol):
    """What can be done to a private installation."""

    async def inject(self, fault: PlannedFault) -> InjectedFault:
        """Break something, wait as long as it lasts, heal it; return when it is whole again.

        Not for `CHANGE_LIMIT`: that is asked over HTTP, as any operator does.
        """
        ...

    def deaths(self) -> Mapping[int, int]:
        """Return, for each process that was killed or has ended, when it was known to be gone (nanoseconds).

        Worker processes and all that ran in them.
        """
        ...


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
