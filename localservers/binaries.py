"""Finds the programs of PostgreSQL and RabbitMQ on this machine, and installs Debian's packages of them.

Searches PATH and the folders where distributions put them. A missing server is installed with apt-get where
this process is root; the package must not start a service of its own. Otherwise raises `MissingBinaries` with
the command that installs what is missing.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from turnstile.localservers.errors import MissingBinaries


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPath:
    """Where to search: `path` is a PATH, `root` the root of the distributions' folders."""

    path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    root: Path = Path("/")

    def folders(self, *patterns: str) -> Iterator[Path]:
        """Yield the folders of PATH, then those that match the patterns, newest version first."""
        for folder in self.path.split(os.pathsep):
            if folder:
                yield Path(folder)
        for pattern in patterns:
            yield from sorted(self.root.glob(pattern), key=_version, reverse=True)


def find_postgresql(search: SearchPath | None = None) -> Path:
    """Return the folder of `initdb` and `postgres`."""
    return _found_or_installed(_postgresql_in, search or SearchPath())


def find_rabbitmq(search: SearchPath | None = None) -> Path:
    """Return RabbitMQ's own folder of scripts.

    Debian's wrappers on PATH do not count: they require a certain user.
    """
    return _found_or_installed(_rabbitmq_in, search or SearchPath())


def find_epmd(search: SearchPath | None = None) -> Path:
    """Return Erlang's port mapper daemon."""
    return _found_or_installed(_epmd_in, search or SearchPath())


def install_missing(search: SearchPath | None = None) -> None:
    """Make sure that both servers are installed."""
    for find in (find_postgresql, find_rabbitmq, find_epmd):
        find(search)


def _found_or_installed(look: Callable[[SearchPath], Path | None], search: SearchPath) -> Path:
    found = look(search)
    if found is None and may_install(search.root):
        install(_missing(search))
        found = look(search)
    if found is None:
        missing = _missing(search)
        raise MissingBinaries(list(missing), install_command(missing.values()))
    return found


def _missing(search: SearchPath) -> dict[str, str]:
    """Return the Debian package of each missing server, by the name of the server."""
    missing = {}
    if _postgresql_in(search) is None:
        missing["PostgreSQL"] = "postgresql"
    if _rabbitmq_in(search) is None or _epmd_in(search) is None:
        missing["RabbitMQ"] = "rabbitmq-server"
    return missing


def _postgresql_in(search: SearchPath) -> Path | None:
    patterns = (
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "usr/local/pgsql/bin",
        "opt/homebrew/opt/postgresql*/bin",
    )
    return next((f for f in search.folders(*patterns) if _has(f, "initdb", "postgres")), None)


def _rabbitmq_in(search: SearchPath) -> Path | None:
    patterns = (
        "usr/lib/rabbitmq/lib/*/sbin",
        "usr/lib/rabbitmq/bin",
        "opt/rabbitmq/sbin",
        "opt/homebrew/opt/rabbitmq/sbin",
    )
    # Only the real folder has the settings script beside the server.
    return next((f for f in search.folders(*patterns) if _has(f, "rabbitmq-server", "rabbitmq-env")), None)


def _epmd_in(search: SearchPath) -> Path | None:
    patterns = ("usr/bin", "usr/lib/erlang/bin", "usr/lib/erlang/erts-*/bin", "usr/local/lib/erlang/bin")
    return next((f / "epmd" for f in search.folders(*patterns) if _has(f, "epmd")), None)


def _has(folder: Path, *programs: str) -> bool:
    # Not Path.is_file: it raises on a folder of PATH without permission.
    return all(os.access(folder / program, os.X_OK) for program in programs)


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(folder))]


_APT_SECONDS = 900.0
_LOCKED_SECONDS = 300
_LOCKED = "Could not get lock"
# invoke-rc.d runs it before it starts a service; 101 is "forbidden" (policy-rc.d interface of Debian).
_SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")
_FORBID_ALL = "#!/bin/sh\nexit 101\n"
# Keeps Debian's postgresql package from creating the cluster "main".
_CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.d/turnstile.conf")
_NO_CLUSTER = "create_main_cluster = false\n"


def may_install(root: Path = Path("/")) -> bool:
    """Return whether this process is root and apt-get exists; never for a `root` other than /."""
    return root == Path("/") and os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_command(packages: Iterable[str]) -> str:
    """Return the shell command that installs `packages`."""
    names = " ".join(sorted(set(packages)))
    command = f"apt-get update && apt-get install -y --no-install-recommends {names}"
    return command if os.geteuid() == 0 else f"sudo sh -c '{command}'"


def install(missing: Mapping[str, str]) -> None:
    """Install packages (server name to package name); raise `MissingBinaries` if apt-get fails."""
    packages = sorted(set(missing.values()))
    sys.stderr.write(f"Installing {' and '.join(packages)} with apt-get ...\n")
    with (
        _alone(),
        _temporary_file(_SERVICE_POLICY, _FORBID_ALL, 0o755),
        _temporary_file(_CLUSTER_SETTINGS, _NO_CLUSTER, 0o644),
    ):
        try:
            _apt_get("update")
            _apt_get("install", "-y", "--no-install-recommends", *packages)
        except (subprocess.SubprocessError, OSError) as failure:
            raise MissingBinaries(list(missing), install_command(packages)) from failure


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other process installs: each finds the temporary files until its own end."""
    folder = os.open(_SERVICE_POLICY.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _apt_get(*arguments: str) -> None:
    """Run apt-get; a machine that has just started updates itself, and holds apt's locks for a while."""
    command = ["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={_LOCKED_SECONDS}", *arguments]
    locked_until = time.monotonic() + _LOCKED_SECONDS
    while True:
        done = subprocess.run(
            command,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_APT_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            return
        # The option above is for the lock of dpkg only.
        if _LOCKED not in done.stdout or time.monotonic() > locked_until:
            sys.stderr.write(done.stdout)
            raise subprocess.CalledProcessError(done.returncode, command)
        time.sleep(1)


@contextmanager
def _temporary_file(path: Path, text: str, mode: int) -> Iterator[None]:
    """Create a file for the time of an installation; an existing file is left as it is."""
    if path.exists():
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")
    path.chmod(mode)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
