"""P1 and P2 with several executors: one admits, and when it dies or hangs another does, within seconds."""

import signal
from pathlib import Path

import pytest

from tests.e2e.admission import lines_locked
from tests.support.history import history_of, physical
from tests.support.processes import Service, System, running
from tests.support.steady import steady
from tests.support.traffic import publishing, request, submit, until

TAKEOVER_SECONDS = 10.0
"""Twice the promise: a hanging executor is given up after two or three heartbeats of two seconds."""


@pytest.mark.timeout(240)
async def test_of_four_executors_each_admitter_killed_or_paused_is_replaced_within_seconds_down_to_the_last(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with (
        running(database_url, amqp_url, executors=4, workers=2) as system,
        history_of(database_url) as history,
    ):
        async with steady(amqp_url, tmp_path) as client:
            await client.goes_on("the start")
            first = await _admitting(system, amqp_url)
            await first.kill()
            second = await _admitting(system, amqp_url, other_than=first)
            second.signal(signal.SIGSTOP)
            third = await _admitting(system, amqp_url, other_than=second)
            second.signal(signal.SIGCONT)
            await client.goes_on("the return of one that hung")
            await third.kill()
            fourth = await _admitting(system, amqp_url, other_than=third)
            await fourth.kill()
            await _admitting(system, amqp_url, other_than=fourth)
            await client.goes_on("the loss of all but one")
        await client.all_ran_once_in_order(history)


async def test_what_a_paused_executor_and_its_successor_both_admit_is_admitted_once(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    bodies = [{"action_ref": "record", "parameters": {"file": str(file), "number": n}} for n in range(101)]
    settings = {"TURNSTILE_DISPATCH_TIMEOUT": "1s", "TURNSTILE_LOCK_TIMEOUT": "1m"}
    async with (
        running(database_url, amqp_url, executors=2, settings=settings) as system,
        history_of(database_url) as history,
    ):
        await submit(amqp_url, bodies[:1])
        await history.ended(1)
        first = await _admitting(system, amqp_url)
        async with lines_locked(database_url) as admitting:
            await submit(amqp_url, bodies[1:51])
            await until(lambda: admitting(1), "it admits, and waits for the line")
            first.signal(signal.SIGSTOP)
            await until(
                lambda: admitting(2), "its successor admits the same", deadline_seconds=TAKEOVER_SECONDS
            )
        await history.ended(51)
        first.signal(signal.SIGCONT)
        (second,) = (each for each in system.executors if each is not first)
        await first.ready()
        await second.kill()
        await submit(amqp_url, bodies[51:])
        await history.ended(101)
        assert await history.value("SELECT count(*) FROM execution") == 101
        granted = await history.grant_order("record")
    assert granted == sorted(granted)
    assert [line.number for line in physical(file) if line.event == "start"] == list(range(101))


async def _admitting(system: System, amqp_url: str, *, other_than: Service | None = None) -> Service:
    """Return the executor that takes the requests: the one that logs the refusal of a bad one."""
    probe = request({"action_ref": "nobody.has.this"})
    found: list[Service] = []

    async def one_says_so() -> bool:
        found[:] = [
            each
            for each in system.executors
            if each is not other_than and probe.message_id in each.log.read_text()
        ]
        return bool(found)

    async with publishing(amqp_url) as publisher:
        await publisher.publish([probe])
    await until(one_says_so, "an executor admits", deadline_seconds=TAKEOVER_SECONDS)
    return found[0]
