"""The conformance kit: our worker keeps every rule, and a worker with a fault fails the case of that rule."""

import asyncio
import sys

import pytest

from tests.support.checked_worker import faults_of
from tests.support.doctored_worker import FAULTS
from turnstile.testing.worker_check.cases import CASES
from turnstile.testing.worker_check.command import run_case

OURS = (
    sys.executable,
    "-m",
    "turnstile",
    "worker",
    "serve",
    "--actions",
    "turnstile.testing.worker_check.actions",
)


@pytest.mark.timeout(400)
async def test_our_worker_keeps_every_rule(vhosts: list[str]) -> None:
    assert await faults_of(OURS, CASES, vhosts) == {}


@pytest.mark.timeout(400)
async def test_a_worker_with_a_fault_fails_the_case_of_its_rule(vhosts: list[str]) -> None:
    cases = {each.name: each for each in CASES}
    left, missed = list(FAULTS.items()), list[str]()

    async def check(amqp_url: str) -> None:
        while left:
            fault, (case, _) = left.pop()
            command = (sys.executable, "-m", "tests.support.doctored_worker", fault)
            if not (await run_case(command, cases[case], amqp_url)).faults:
                missed.append(f"{fault} passes {case}")

    async with asyncio.TaskGroup() as tasks:
        for amqp_url in vhosts:
            tasks.create_task(check(amqp_url))
    assert missed == []
