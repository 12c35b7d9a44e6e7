"""Plants one defect in a copy of the tree and runs the tests that must detect it.

A defect is caught, survives, or breaks the trial itself.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.proof.mutants.defect import Defect
from tests.proof.mutants.gate_defects import GATE_DEFECTS
from tests.proof.mutants.protocol_defects import PROTOCOL_DEFECTS
from tests.proof.mutants.service_defects import SERVICE_DEFECTS
from tests.support.sources import AMQP_URL, DATABASE_URL, MANAGEMENT_URL
from turnstile.localservers import LocalServers

DEFECTS = (*PROTOCOL_DEFECTS, *GATE_DEFECTS, *SERVICE_DEFECTS)
ROOT = Path(__file__).parents[3]
_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "dist"
)
_TESTS_FAILED = 1
_TRIAL_SECONDS = 300


class Fate(StrEnum):
    """The outcome of a trial."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    BROKEN = "broken"
    """The tests could not run: the defect is no valid code, or a test does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One defect and the outcome of its tests."""

    defect: Defect
    fate: Fate
    seconds: float
    output: str


@contextmanager
def servers() -> Iterator[Mapping[str, str]]:
    """Start servers for all trials; yields the environment variables that name them."""
    with LocalServers.start(durable=False) as local:
        yield {
            DATABASE_URL: local.postgresql.url("postgres"),
            AMQP_URL: local.rabbitmq.url(),
            MANAGEMENT_URL: local.rabbitmq.management_url,
        }


def baseline(defects: Sequence[Defect], environment: Mapping[str, str]) -> Trial:
    """Run all the detecting tests on the unchanged tree, where they must pass."""
    tests = sorted({test for defect in defects for test in defect.caught_by})
    nothing = Defect(name="no defect", file="", before="", after="", caught_by=tuple(tests))
    return _run(nothing, ROOT, environment, seconds_max=_TRIAL_SECONDS * 4)


def attempt(defect: Defect, environment: Mapping[str, str]) -> Trial:
    """Plant one defect in a copy of the tree and run its tests."""
    with TemporaryDirectory(prefix="turnstile-mutant-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=_NOT_COPIED, symlinks=True)
        defect.plant(tree)
        return _run(defect, tree, environment, seconds_max=_TRIAL_SECONDS)


def _run(defect: Defect, tree: Path, environment: Mapping[str, str], *, seconds_max: float) -> Trial:
    started = time.monotonic()
    options = ("-x", "-q", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *options, *defect.caught_by]
    with subprocess.Popen(
        command,
        cwd=tree,
        # The copy has priority over the installed tree, also in every process that a test starts.
        env={**os.environ, **environment, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "CI": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            output += "\nthe trial timed out"
    return Trial(
        defect=defect,
        fate=_fate(process.returncode),
        seconds=time.monotonic() - started,
        output=output[-4000:],
    )


def _fate(exit_code: int) -> Fate:
    match exit_code:
        case 0:
            return Fate.SURVIVED
        case code if code == _TESTS_FAILED:
            return Fate.CAUGHT
        case _:
            return Fate.BROKEN
