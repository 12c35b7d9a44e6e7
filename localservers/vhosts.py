"""Virtual hosts of a RabbitMQ server that is reached by URL, ours or anyone's.

In: an AMQP URL and the management URL of the same server. Out: AMQP URLs of fresh vhosts. Over the management
HTTP API, since each call of `rabbitmqctl` starts an Erlang machine of its own. `rabbitmq.py` adds the server
itself.
"""

import time
from collections.abc import Mapping
from typing import Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx

from turnstile.localservers.errors import ServerFailed

_REQUEST_SECONDS = 30.0
_PROBE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_DEFAULT_VHOST = "/"
_MANAGEMENT_PORT = 15672
_EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


class BrokerServer:
    """A RabbitMQ server on which vhosts come and go; `server_url` may name any vhost."""

    def __init__(self, server_url: str, management_url: str | None = None) -> None:
        self._server_url = server_url
        self._parts = urlsplit(server_url)
        self.management_url = management_url or f"http://{self._parts.hostname}:{_MANAGEMENT_PORT}"
        self._user = unquote(self._parts.username or "guest")
        password = unquote(self._parts.password or "guest")
        # trust_env off: a proxy of the environment has no business between us and a server at hand.
        self._http = httpx.Client(
            base_url=self.management_url,
            auth=(self._user, password),
            timeout=_REQUEST_SECONDS,
            trust_env=False,
        )

    def url(self, vhost: str = _DEFAULT_VHOST) -> str:
        """Return the AMQP URL of one vhost, which need not exist."""
        return urlunsplit(self._parts._replace(path="/" + quote(vhost, safe="")))

    def create_vhost(self, name: str) -> str:
        """Create a vhost in which our user may do everything, and return its AMQP URL."""
        self._call("PUT", f"/api/vhosts/{_segment(name)}", {})
        self._call("PUT", f"/api/permissions/{_segment(name)}/{_segment(self._user)}", _EVERYTHING)
        return self.url(name)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost and all in it, closing its connections; without effect where it does not exist."""
        self._call("DELETE", f"/api/vhosts/{_segment(name)}", missing_ok=True)

    def set_policy(self, vhost: str, name: str, pattern: str, definition: Mapping[str, str | int]) -> None:
        """Give every queue of a vhost whose name matches `pattern` these arguments, until `delete_policy`."""
        self._call(
            "PUT",
            f"/api/policies/{_segment(vhost)}/{_segment(name)}",
            {"pattern": pattern, "definition": definition, "apply-to": "queues"},
        )

    def delete_policy(self, vhost: str, name: str) -> None:
        """Remove a policy; without effect where it does not exist."""
        self._call("DELETE", f"/api/policies/{_segment(vhost)}/{_segment(name)}", missing_ok=True)

    def close_connections(self, vhost: str) -> int:
        """Close every connection of a vhost from the server's side; return how many there were."""
        found = self._call("GET", f"/api/vhosts/{_segment(vhost)}/connections").json()
        for connection in found:
            self._call("DELETE", f"/api/connections/{_segment(connection['name'])}", missing_ok=True)
        return len(found)

    def wait_until_ready(self, timeout_seconds: float = 90.0) -> None:
        """Wait until the server takes requests; raise `ServerFailed` when the time is over first."""
        deadline = time.monotonic() + timeout_seconds
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.management_url} did not answer within {timeout_seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def is_ready(self) -> bool:
        """Whether the server listens for AMQP connections."""
        try:
            answer = self._http.get("/api/health/checks/protocol-listener/amqp", timeout=_PROBE_SECONDS)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def version(self) -> str:
        """Return the version of the server."""
        return str(self._call("GET", "/api/overview").json()["rabbitmq_version"])

    def close(self) -> None:
        """Let go of the HTTP connection to the server."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, missing_ok: bool = False
    ) -> httpx.Response:
        answer = self._http.request(method, path, json=body)
        if not (missing_ok and answer.status_code == httpx.codes.NOT_FOUND):
            answer.raise_for_status()
        return answer


def _segment(name: str) -> str:
    return quote(name, safe="")
