"""The worker for Node in examples/node_worker keeps every rule of the protocol, and its types are right."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.checked_worker import faults_of
from turnstile.testing.worker_check.cases import CASES

ROOT = Path(__file__).parents[3]


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
