"""What tests let an operator of the broker do: policies, and connections that the server closes."""

from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

from turnstile.localservers import BrokerServer

PolicyKind = Literal["policies", "operator-policies"]


def set_policy(
    broker: BrokerServer,
    vhost: str,
    name: str,
    pattern: str,
    definition: Mapping[str, str | int],
    *,
    kind: PolicyKind = "policies",
) -> None:
    """Apply these arguments to every queue of a vhost whose name matches `pattern`."""
    body = {"pattern": pattern, "definition": definition, "apply-to": "queues"}
    broker.call("PUT", f"/api/{kind}/{_segment(vhost)}/{_segment(name)}", body)


def delete_policy(broker: BrokerServer, vhost: str, name: str, *, kind: PolicyKind = "policies") -> None:
    """Remove a policy; no effect where it is missing."""
    broker.call("DELETE", f"/api/{kind}/{_segment(vhost)}/{_segment(name)}", missing_ok=True)


def close_connections(broker: BrokerServer, vhost: str) -> int:
    """Close every connection of a vhost on the server's side; return their number."""
    found = broker.call("GET", f"/api/vhosts/{_segment(vhost)}/connections").json()
    for connection in found:
        broker.call("DELETE", f"/api/connections/{_segment(connection['name'])}", missing_ok=True)
    return len(found)


def _segment(name: str) -> str:
    return quote(name, safe="")
