"""Plants one bug in a copy of the tree and runs the test that must detect it.

A bug is caught, survives, or breaks the trial itself.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.proof.planted import ROOT, PlantedBug, changed
from tests.support.sources import AMQP_URL, DATABASE_URL, MANAGEMENT_URL
from turnstile.localservers import LocalServers

_NOT_COPIED: Final = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build", "dist"
)
_TESTS_FAILED: Final = 1
_TRIAL_SECONDS: Final = 300.0


class Fate(StrEnum):
    """The outcome of a trial."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    BROKEN = "broken"
    """The test could not run: the bug is no valid code, or the test does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome of some tests on one tree."""

    fate: Fate
    output: str

    def unless(self, wanted: Fate) -> list[str]:
        """Return the fate with the output of the tests; nothing, if it is the one that is wanted."""
        return [] if self.fate is wanted else [self.fate, self.output]


@contextmanager
def servers() -> Iterator[Mapping[str, str]]:
    """Start servers for all trials; yields the environment variables that name them."""
    with LocalServers.start(durable=False) as local:
        yield {
            DATABASE_URL: local.postgresql.url("postgres"),
            AMQP_URL: local.rabbitmq.url(),
            MANAGEMENT_URL: local.rabbitmq.management_url,
        }


@contextmanager
def copied_tree() -> Iterator[Path]:
    """Lend a copy of the tree: what is edited meanwhile does not count."""
    with TemporaryDirectory(prefix="turnstile-mutant-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=_NOT_COPIED, symlinks=True)
        yield tree


@contextmanager
def planted(bug: PlantedBug, tree: Path) -> Iterator[None]:
    """Change the file in `tree` for as long as the block lasts."""
    (path,) = {change.where for change in bug.changes}
    file = tree / path
    text = file.read_text(encoding="utf-8")
    file.write_text(changed(text, bug.changes), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")


def attempt(bug: PlantedBug, tree: Path, environment: Mapping[str, str]) -> Trial:
    """Plant one bug and run its test."""
    with planted(bug, tree):
        return run_tests([bug.found_by], tree, environment)


def run_tests(tests: list[str], tree: Path, environment: Mapping[str, str]) -> Trial:
    """Run tests in a tree."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    # The copy has priority over the installed tree, also in every process that a test starts. No bytecode:
    # a file that was changed and restored within a second would not be compiled again.
    path = f"{tree / 'src'}{os.pathsep}{tree}"
    ours = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
    try:
        done = subprocess.run(
            command, cwd=tree, env={**os.environ, **environment, **ours}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=_TRIAL_SECONDS * len(tests),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Trial(fate=Fate.BROKEN, output="it timed out")
    return Trial(fate=_fate(done.returncode), output=done.stdout[-4000:])


def _fate(exit_code: int) -> Fate:
    match exit_code:
        case 0:
            return Fate.SURVIVED
        case code if code == _TESTS_FAILED:
            return Fate.CAUGHT
        case _:
            return Fate.BROKEN
