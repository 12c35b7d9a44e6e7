"""Policies of a broker that would let it drop messages of ours.

In: the policies of a vhost, from the management API. Out: a sentence for each that takes effect on a
queue of ours and bounds it, with the command that removes it. A confirmed request that the broker drops is
lost, and nothing else shows that.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from turnstile.common.broker.topology import QUEUES, session_queue
from turnstile.executor.permissions.broker import ManagementApi

_DROPPING: Final = ("expires", "max-length", "max-length-bytes", "message-ttl")
_OF_QUEUES: Final = ("queues", "all", "quorum_queues", "classic_queues")
_SOME_ID: Final = "01234567-89ab-cdef-0123-456789abcdef"
_QUEUES: Final = (*QUEUES, session_queue(_SOME_ID, 1), f"client.{_SOME_ID}.answers")


def policies_that_drop(api: ManagementApi, vhost: str) -> list[str]:
    """Read the policies of a vhost; return what is wrong. Raises as the API does."""
    policies = api.read_policies(vhost, "policies")
    return list(dropping_policies(vhost, policies, api.read_policies(vhost, "operator-policies")))


def dropping_policies(
    vhost: str, policies: Sequence[Mapping[str, Any]], operator_policies: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield what is wrong. Of the policies that match a queue, that with the highest priority has effect."""
    for kind, found in (("policy", policies), ("operator policy", operator_policies)):
        struck: dict[str, list[str]] = {}
        for queue in _QUEUES:
            matching = [each for each in found if each["apply-to"] in _OF_QUEUES and _matches(each, queue)]
            if matching:
                effective = max(matching, key=lambda each: each["priority"])
                struck.setdefault(effective["name"], []).append(queue.replace(_SOME_ID, "<id>"))
        for each in found:
            named = [name for name in _DROPPING if name in each["definition"]]
            if named and (queues := struck.get(each["name"])):
                command = f"clear_{kind.replace(' ', '_')}"
                yield (
                    f"{kind} {each['name']!r} lets the broker drop messages of {', '.join(queues)} "
                    f"({', '.join(named)}): rabbitmqctl {command} -p {vhost} {each['name']}"
                )


def _matches(policy: Mapping[str, Any], queue: str) -> bool:
    try:
        return re.search(policy["pattern"], queue) is not None
    except re.error:
        # The broker's patterns are those of Perl; what only they have is not judged.
        return False
