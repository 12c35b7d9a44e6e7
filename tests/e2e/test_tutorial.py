"""The tutorial, played from its text: its files are saved, its commands run, and they print what it shows."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.packaging.installed import Environment as Installed
from tests.support.sources import AMQP_URL, DATABASE_URL, MANAGEMENT_URL
from turnstile.localservers import BrokerServer, DatabaseServer

_PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"# (\w+\.(?:py|toml))\n")


@pytest.fixture(params=["this interpreter", pytest.param("a wheel", marks=pytest.mark.whole)])
def variables(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Those with which Python finds Turnstile: here, or installed into an environment of its own."""
    if request.param == "a wheel":
        installed = Installed(tmp_path / "venv")
        # The dependencies are found in this interpreter's folder; their commands are not in the environment.
        (installed.bin / "pytest").write_text(f'#!/bin/sh\nexec {installed.bin}/python -m pytest "$@"\n')
        (installed.bin / "pytest").chmod(0o755)
        return dict(installed.variables({}))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


@pytest.fixture
def environment(
    variables: dict[str, str], postgresql: DatabaseServer, rabbitmq: BrokerServer
) -> dict[str, str]:
    """That of a new user, with the servers of this session."""
    assert rabbitmq.management_url is not None
    return {
        **variables,
        "PYTHONDONTWRITEBYTECODE": "1",
        DATABASE_URL: postgresql.url("postgres"),
        AMQP_URL: rabbitmq.url(),
        MANAGEMENT_URL: rabbitmq.management_url,
    }


def test_each_command_prints_what_the_tutorial_shows(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "tutorial"
    folder.mkdir()
    played = 0
    printed: str | None = None
    for language, text in _steps():
        match language:
            case "python" | "toml":
                name = _NAME.match(text)
                assert name is not None, f"a file without its name in the first line:\n{text}"
                (folder / name[1]).write_text(text)
            case "sh":
                assert printed is None, f"the tutorial does not show what this prints:\n{printed}"
                printed = _run(text, folder, environment)
            case "text":
                assert printed is not None, f"no command prints this:\n{text}"
                for line in text.splitlines():
                    assert line in printed
                printed = None
                played += 1
            case _:
                pytest.fail(f"a block of another kind: {language}\n{text}")
    assert printed is None
    assert played == 3


def test_it_says_how_to_install_before_anything_else() -> None:
    language, text = _BLOCK.findall(_PAGE.read_text())[0]
    assert language == "sh"
    assert text.splitlines()[-1].startswith("pip install ")


def _steps() -> Iterator[tuple[str, str]]:
    """Yield the blocks after the first, which installs what this environment has."""
    yield from _BLOCK.findall(_PAGE.read_text())[1:]


def _run(command: str, folder: Path, environment: dict[str, str]) -> str:
    ended = subprocess.run(
        ["sh", "-ec", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
