"""A fresh virtual environment with this project, and an application with modules of the same names."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
FOLDERS: Final = ("client", "common", "localservers", "migrations", "testing", "tests")
MODULES: Final = ("executor", "stress", "worker")
_IMPORTS: Final = f"import {', '.join((*FOLDERS, *MODULES))}"
ACTIONS: Final = f'''
import json
import os
import sys

{_IMPORTS}

from turnstile import Context, action, command_action, http_action


def owners() -> dict[str, str]:
    """Return the owner of every module that has the name of a folder of Turnstile."""
    return {{m.__name__: m.OWNER for m in ({", ".join((*FOLDERS, *MODULES))})}}


@action("own.async")
async def in_loop(context: Context, number: int) -> dict[str, str]:
    return owners()


@action("own.plain", max_concurrent=1)
def in_child(number: int) -> dict[str, str]:
    return owners()


PROGRAM = "import actions, json; print(json.dumps(actions.owners()))"
command_action("own.command", argv=[sys.executable, "-c", PROGRAM])
http_action("own.http", url=os.environ["HTTP_ACTION_URL"])
'''
SUBMIT: Final = f"""
import asyncio
import json
import os

{_IMPORTS}

from turnstile import AsyncClient, Client

URLS = {{"amqp_url": os.environ["TURNSTILE_AMQP_URL"], "http_url": os.environ["TURNSTILE_API_URL"]}}


async def by_async_client() -> dict[str, object]:
    async with AsyncClient(**URLS) as own:
        return {{ref: await own.run(ref, {{"number": 7}}) for ref in ("own.async", "own.plain")}}


with Client(**URLS) as own:
    results = {{ref: own.run(ref, {{"number": 7}}) for ref in ("own.command", "own.http")}}
print(json.dumps(results | asyncio.run(by_async_client())))
"""


class Environment:
    """A virtual environment that holds what `pip install` makes of this repository.

    The dependencies are those of the running interpreter, by a path entry: an editable install there is a
    .pth file, which Python reads only in its own site-packages.
    """

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self._folder = folder
        venv.create(folder, with_pip=False, symlinks=True)
        (site_packages,) = folder.glob("lib/python3.*/site-packages")
        (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet"]
        self.run(*pip, "--no-index", "--no-deps", "--no-build-isolation", str(ROOT), folder=folder)
        self.site_packages = site_packages

    def run(
        self, *command: str, folder: Path, settings: Mapping[str, str] | None = None, expected: int = 0
    ) -> str:
        """Run a command in a folder of the user and return its output."""
        done = subprocess.run(
            command,
            cwd=folder,
            env=self.variables(settings or {}),
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stdout + done.stderr

    def variables(self, settings: Mapping[str, str]) -> Mapping[str, str]:
        """Return the environment variables of a process: none of this repository's."""
        return {
            "PATH": f"{self.bin}{os.pathsep}{os.defpath}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **settings,
        }


def write_application(folder: Path) -> Path:
    """Write an application whose modules have the names of the folders of this repository."""
    folder.mkdir()
    for name in FOLDERS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("OWNER = 'user'\n")
    for name in MODULES:
        (folder / f"{name}.py").write_text("OWNER = 'user'\n")
    (folder / "actions.py").write_text(ACTIONS)
    (folder / "submit.py").write_text(SUBMIT)
    return folder
