"""The replay of gates reads what the protocol's statements store."""

from dataclasses import replace
from typing import Any, Final

from tests.proof.history.stored_gates import read_gates
from tests.support.gates import put_resource
from tests.support.protocol import connected
from turnstile.stress.check.passages import violations

ROUNDS: Final = 12


async def test_the_stored_history_of_gates_breaks_no_rule_and_a_falsified_one_does(database_url: str) -> None:
    async with connected(database_url) as protocol:
        await put_resource(protocol.database, "cad", capacity=2, order="fair")
        await protocol.register()
        uses: list[dict[str, Any]] = [{"resource": "cad", "units": 1, "weight": 2}]
        fields = {"submitter_keys": True, "max_concurrent": 2, "max_concurrent_total": 3, "order": "fair"}
        await protocol.put("a", uses=uses, **fields)
        await protocol.put("b", uses=["cad"])
        for number in range(ROUNDS):
            await protocol.submit("a", concurrency_key=f"k{number % 2}")
            await protocol.submit("b")
        await put_resource(protocol.database, "cad", capacity=1, order="fair")
        while ids := await protocol.held():
            await protocol.run(ids[0])
            await protocol.settle((ids[0], 1))
        history = await read_gates(protocol.connection, settling_ns=0)
    gates = {stay.gate for passer in history.passers for stay in passer.stays}
    assert gates == {"queue", "total", "resource cad"}
    assert len(history.passers) == 2 * ROUNDS
    assert violations(history) == []

    last = max(history.passers, key=lambda passer: passer.stays[-1].passed_at)
    longer = [passer._replace(completed_at=last.completed_at) for passer in history.passers]
    assert "P11" in {broken.rule for broken in violations(replace(history, passers=longer))}
    early = last.stays[-1]._replace(passed_at=last.stays[-1].arrived_at + 1)
    overtaking = last._replace(stays=(*last.stays[:-1], early), completed_at=early.passed_at)
    passers = [overtaking if passer == last else passer for passer in history.passers]
    assert violations(replace(history, passers=passers))
