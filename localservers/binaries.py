"""Find the programs of PostgreSQL and RabbitMQ on this machine.

In: PATH and the folders where distributions put them. Out: the folder of each server's programs, or
`MissingBinaries` with the one command that installs what is missing. Where we may install, `packages.py` is
asked first.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from turnstile.localservers.errors import MissingBinaries
from turnstile.localservers.packages import install, install_command, may_install


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where to look: `path` is a PATH, `root` is what the distributions' folders hang from."""

    path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    root: Path = Path("/")

    def folders(self, *patterns: str) -> Iterator[Path]:
        """Yield the folders of PATH, then those that match the patterns, newest version first."""
        for folder in self.path.split(os.pathsep):
            if folder:
                yield Path(folder)
        for pattern in patterns:
            yield from sorted(self.root.glob(pattern), key=_version, reverse=True)


def find_postgresql(places: Places | None = None) -> Path:
    """Return the folder that holds `initdb` and `postgres`."""
    return _found_or_installed(_postgresql_in, places or Places())


def find_pg_basebackup(places: Places | None = None) -> Path:
    """Return the program that copies a running server; it lies beside the real `postgres`."""
    found = (find_postgresql(places) / "postgres").resolve().with_name("pg_basebackup")
    if not _has(found.parent, found.name):
        raise MissingBinaries([found.name], install_command(["postgresql-client"]))
    return found


def find_rabbitmq(places: Places | None = None) -> Path:
    """Return RabbitMQ's own folder of scripts.

    Debian's wrappers on PATH, which insist on a user, do not count.
    """
    return _found_or_installed(_rabbitmq_in, places or Places())


def find_epmd(places: Places | None = None) -> Path:
    """Return Erlang's port mapper daemon."""
    return _found_or_installed(_epmd_in, places or Places())


def install_missing(places: Places | None = None) -> None:
    """Make sure that both servers are there, so that starting them needs no installation."""
    for find in (find_postgresql, find_rabbitmq, find_epmd):
        find(places)


def _found_or_installed(look: Callable[[Places], Path | None], places: Places) -> Path:
    found = look(places)
    if found is None and may_install(places.root):
        install(_missing(places))
        found = look(places)
    if found is None:
        missing = _missing(places)
        raise MissingBinaries(list(missing), install_command(missing.values()))
    return found


def _missing(places: Places) -> dict[str, str]:
    """Map the name of each missing server to the Debian package that brings it."""
    missing = {}
    if _postgresql_in(places) is None:
        missing["PostgreSQL"] = "postgresql"
    if _rabbitmq_in(places) is None or _epmd_in(places) is None:
        missing["RabbitMQ"] = "rabbitmq-server"
    return missing


def _postgresql_in(places: Places) -> Path | None:
    patterns = (
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "usr/local/pgsql/bin",
        "opt/homebrew/opt/postgresql*/bin",
    )
    return next((f for f in places.folders(*patterns) if _has(f, "initdb", "postgres")), None)


def _rabbitmq_in(places: Places) -> Path | None:
    patterns = (
        "usr/lib/rabbitmq/lib/*/sbin",
        "usr/lib/rabbitmq/bin",
        "opt/rabbitmq/sbin",
        "opt/homebrew/opt/rabbitmq/sbin",
    )
    # Only the real folder has the settings script beside the server.
    return next((f for f in places.folders(*patterns) if _has(f, "rabbitmq-server", "rabbitmq-env")), None)


def _epmd_in(places: Places) -> Path | None:
    patterns = ("usr/bin", "usr/lib/erlang/bin", "usr/lib/erlang/erts-*/bin", "usr/local/lib/erlang/bin")
    return next((f / "epmd" for f in places.folders(*patterns) if _has(f, "epmd")), None)


def _has(folder: Path, *programs: str) -> bool:
    # Not Path.is_file: it raises on a folder of PATH that we may not enter.
    return all(os.access(folder / program, os.X_OK) for program in programs)


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(folder))]
