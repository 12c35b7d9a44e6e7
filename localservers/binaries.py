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
from collections.abc import Iterable, Iterator, Mapping
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Programs:
    """Programs of a server that are in one folder, and the Debian package that has them."""

    server: str
    package: str
    names: tuple[str, ...]
    folders: tuple[str, ...]
    """Where distributions put them."""

    def look(self, search: SearchPath) -> Path | None:
        """Return the first folder with all of them."""
        # Not Path.is_file: it raises on a folder of PATH without permission.
        found = (
            folder
            for folder in search.folders(*self.folders)
            if all(os.access(folder / name, os.X_OK) for name in self.names)
        )
        return next(found, None)


_POSTGRESQL = _Programs(
    server="PostgreSQL",
    package="postgresql",
    names=("initdb", "postgres"),
    folders=(
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "usr/local/pgsql/bin",
        "opt/homebrew/opt/postgresql*/bin",
    ),
)
_RABBITMQ = _Programs(
    server="RabbitMQ",
    package="rabbitmq-server",
    # Only the real folder has the settings script too. Debian's wrappers on PATH require a certain user.
    names=("rabbitmq-server", "rabbitmq-env"),
    folders=(
        "usr/lib/rabbitmq/lib/*/sbin",
        "usr/lib/rabbitmq/bin",
        "opt/rabbitmq/sbin",
        "opt/homebrew/opt/rabbitmq/sbin",
    ),
)
_EPMD = _Programs(
    server="RabbitMQ",
    package="rabbitmq-server",
    names=("epmd",),
    folders=("usr/bin", "usr/lib/erlang/bin", "usr/lib/erlang/erts-*/bin", "usr/local/lib/erlang/bin"),
)
_ALL = (_POSTGRESQL, _RABBITMQ, _EPMD)


def find_postgresql(search: SearchPath | None = None) -> Path:
    """Return the folder of `initdb` and `postgres`."""
    return _found_or_installed(_POSTGRESQL, search or SearchPath())


def find_rabbitmq(search: SearchPath | None = None) -> Path:
    """Return RabbitMQ's own folder of scripts."""
    return _found_or_installed(_RABBITMQ, search or SearchPath())


def find_epmd(search: SearchPath | None = None) -> Path:
    """Return Erlang's port mapper daemon."""
    return _found_or_installed(_EPMD, search or SearchPath()) / "epmd"


def install_missing(search: SearchPath | None = None) -> None:
    """Make sure that both servers are installed."""
    for programs in _ALL:
        _found_or_installed(programs, search or SearchPath())


def _found_or_installed(programs: _Programs, search: SearchPath) -> Path:
    found = programs.look(search)
    if found is None:
        missing = {each.server: each.package for each in _ALL if each.look(search) is None}
        if may_install(search.root):
            install(missing)
            found = programs.look(search)
        if found is None:
            raise MissingBinaries(list(missing), install_command(missing.values()))
    return found


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
