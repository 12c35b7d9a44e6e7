"""The conformance kit: our worker keeps every rule, and a worker with a fault fails the case of that rule."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.doctored_worker import FAULTS
from tests.support.sources import Servers
from turnstile.testing.worker_check.cases import CASES, Case
from turnstile.testing.worker_check.command import run_case, run_cases

ROOT = Path(__file__).parents[3]
_TOGETHER = 6
OURS = (
    sys.executable,
    "-m",
    "turnstile",
    "worker",
    "serve",
    "--actions",
    "turnstile.testing.worker_check.actions",
)


@pytest.fixture
def vhosts(servers: Servers, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Vhosts for cases that run together."""
    names = [f"{request.node.name}-{each}" for each in range(_TOGETHER)]
    yield [servers.rabbitmq.create_vhost(name) for name in names]
    for name in names:
        servers.rabbitmq.delete_vhost(name)


async def faults_of(command: Sequence[str], cases: Sequence[Case], vhosts: Sequence[str]) -> dict[str, str]:
    """Return what is wrong with a worker, by case."""
    verdicts = [each async for each in run_cases(command, cases, vhosts)]
    assert len(verdicts) == len(cases)
    return {each.case.name: "\n".join([*each.faults, each.log]) for each in verdicts if each.faults}


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


@pytest.fixture(scope="module")
def node_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker for Node, installed from its lock file; skips where Node or its package is not to be had."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not on PATH")
    folder = tmp_path_factory.mktemp("node") / "worker"
    source = ROOT / "examples" / "node_worker"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("node_modules"))
    installed = subprocess.run(["npm", "ci"], cwd=folder, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"npm cannot install what package-lock.json names: {installed.stderr.strip()[-300:]}")
    return folder


@pytest.mark.timeout(400)
async def test_the_worker_for_node_keeps_every_rule(vhosts: list[str], node_worker: Path) -> None:
    assert await faults_of(("node", str(node_worker / "check.js")), CASES, vhosts) == {}


def test_the_types_of_the_worker_for_node_fit_its_examples(node_worker: Path) -> None:
    checked = subprocess.run(
        ["npm", "run", "types"], cwd=node_worker, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_the_lock_file_of_the_worker_for_node_names_no_host() -> None:
    text = (ROOT / "examples" / "node_worker" / "package-lock.json").read_text()
    assert "resolved" not in text
    assert "integrity" in text
