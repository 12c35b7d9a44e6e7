"""Runs cases of the conformance kit in a test."""

from collections.abc import Sequence

from turnstile.testing.worker_check.cases import Case
from turnstile.testing.worker_check.command import run_cases


async def faults_of(command: Sequence[str], cases: Sequence[Case], vhosts: Sequence[str]) -> dict[str, str]:
    """Return what is wrong with a worker, by case."""
    verdicts = [each async for each in run_cases(command, cases, vhosts)]
    assert len(verdicts) == len(cases)
    return {each.case.name: "\n".join([*each.faults, each.log]) for each in verdicts if each.faults}
