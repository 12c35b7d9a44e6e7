"""The services of the previous release, 0.1.0: taken from the history of this repository.

Its packages have top-level names (`executor`, `worker`, ...) and run with the libraries of this environment,
beside the package `turnstile` of this version.
"""

import asyncio
import io
import subprocess
import sys
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.support.processes import Service, System
from turnstile.localservers.services import Service as PlannedService

COMMIT: Final = "02cc7b4f85533214a6145993012c26faa000d058"
"""The last commit of 0.1.0: what follows is listed as unreleased in CHANGELOG.md."""
ACTIONS: Final = "previous_actions"
_PACKAGES: Final = ("client", "common", "executor", "migrations", "worker")
_ROOT: Final = Path(__file__).parents[2]
_ACTIONS_FILE: Final = _ROOT / "tests" / "e2e" / "actions.py"
_SECONDS: Final = 60.0


class MissingHistory(Exception):
    """The repository has no history, or not all of it."""


def unpack(folder: Path) -> None:
    """Write the release's packages and, as `previous_actions`, the actions of the tests into `folder`.

    Raises MissingHistory.
    """
    command = ["git", "-C", str(_ROOT), "archive", COMMIT, *_PACKAGES]
    try:
        archived = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS)
    except FileNotFoundError:
        raise MissingHistory("git is not installed") from None
    if archived.returncode != 0:
        error = archived.stderr.decode().strip()
        raise MissingHistory(f"commit {COMMIT[:7]} is missing; run 'git fetch --unshallow': {error}")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        # Python 3.11.0 to 3.11.3 have no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    text = _ACTIONS_FILE.read_text(encoding="utf-8")
    own_import = "from turnstile.worker import"
    assert own_import in text
    (folder / f"{ACTIONS}.py").write_text(text.replace(own_import, "from worker import"), encoding="utf-8")


@dataclass(kw_only=True)
class PreviousSystem(System):
    """Executors and workers of the previous release."""

    release: Path
    """The folder of `unpack`, in which they run: the tests' own folder has packages of the same names."""

    def __post_init__(self) -> None:
        """Run them in the folder of the release."""
        self.working_folder = self.release

    async def migrate(self) -> None:
        """Bring the database to the schema of the release."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "executor.cli", "migrate"),
            env=self._deployment.environment() | self._importable(),
            cwd=self.release,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), _SECONDS)
        assert process.returncode == 0, output.decode()

    async def _start(self, planned: PlannedService) -> Service:
        arguments = [argument.removeprefix("turnstile.") for argument in planned.arguments]
        environment = {**planned.environment, **self._importable()}
        return await super()._start(replace(planned, arguments=arguments, environment=environment))

    def _importable(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.release)}
