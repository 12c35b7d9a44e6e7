"""The Makefile: it explains itself, and every target that a person types is in its help."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=30).stdout


@needs_make
def test_make_alone_lists_every_target_with_a_sentence() -> None:
    listed = dict(re.findall(r"^  make ([a-z-]+) +(\S.*)$", output("make"), re.MULTILINE))
    assert sorted(listed) == sorted(set(TARGETS))


def test_the_targets_that_the_documentation_promises_exist() -> None:
    assert {"setup", "demo", "up", "check", "test", "bench", "lock", "clean", "format", "help"} <= set(
        TARGETS
    )


def test_every_target_is_phony_so_that_a_folder_of_its_name_does_not_hide_it() -> None:
    assert sorted(re.findall(r"^\.PHONY: ([a-z-]+)$", MAKEFILE, re.MULTILINE)) == sorted(TARGETS)


def test_the_gate_runs_check_and_then_test() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert commands == ["make check", "make test"]


@pytest.mark.parametrize("script", ["scripts/setup", ".ci/run"])
def test_scripts_are_executable_and_well_formed(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111
    output("bash", "-n", script)
