"""Epochs that workers say they have seen: what a stolen worker account can make of them is little."""

from typing import Any

from tests.support.inbox import Installation, request
from tests.support.ledger import until
from turnstile.common.worker_protocol import Heartbeat, Hello, Sender

_STRANGER = Sender(worker_id="stranger", session=1, secret="x")


def _hello(epoch: int) -> Hello:
    return Hello(
        sender=_STRANGER, name="stranger", pools=("default",), actions=None, concurrency=1,
        lease_seconds=60.0, epoch_seen=epoch, is_taking=False,
    )  # fmt: skip


def _heartbeat(sender: Sender, epoch: int) -> Heartbeat:
    return Heartbeat(sender=sender, number=1, epoch_seen=epoch, received=0)


async def test_an_epoch_that_was_never_issued_disturbs_no_leader(installation: Installation) -> None:
    leader = installation.lead()
    await installation.define("action", "a")
    lead: Any = leader.leader.leadership
    epoch, worker = lead.epoch, leader.broker.worker
    worker.hello()
    leader.broker.put("executor.heartbeats", _heartbeat(worker.sender, 2**63 - 1))
    leader.broker.put("executor.heartbeats", _hello(2**63 - 1))

    async def are_refused() -> bool:
        return bool(lead.sessions.refused == 2)

    await until(are_refused)
    await installation.submit(request())
    assert lead.epoch == epoch
    assert leader.leader.leadership is lead


async def test_a_leader_takes_over_above_an_epoch_of_a_worker_but_not_again_and_again(
    installation: Installation,
) -> None:
    leader = installation.lead()
    await installation.define("action", "a")
    before: Any = leader.leader.leadership
    seen = before.epoch + 10**9
    leader.broker.put("executor.heartbeats", _hello(seen))

    async def is_above() -> bool:
        lead = leader.leader.leadership
        return lead is not None and lead.epoch > seen

    await until(is_above)
    lead: Any = leader.leader.leadership
    leader.broker.put("executor.heartbeats", _hello(lead.epoch + 10**9))

    async def is_noted() -> bool:
        return bool(lead.sessions.epoch_above)

    await until(is_noted)
    for _ in range(3):
        await installation.submit(request())
    assert leader.leader.leadership is lead
