"""Install Debian's packages of the servers, without letting them start services of their own.

In: the names of packages. Out: programs on the disk and nothing that runs. `binaries.py` decides when.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from turnstile.localservers.errors import MissingBinaries

_APT_SECONDS = 900.0
# What invoke-rc.d asks before it starts a service; 101 is "forbidden" (policy-rc.d interface of Debian).
_SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")
_FORBID_ALL = "#!/bin/sh\nexit 101\n"
# Keeps postgresql's package from creating and later starting a cluster "main".
_CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.d/turnstile.conf")
_NO_CLUSTER = "create_main_cluster = false\n"


def may_install(root: Path = Path("/")) -> bool:
    """Whether we are root on a machine with apt-get; `root` other than / is somebody else's machine."""
    return root == Path("/") and os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_command(packages: Iterable[str]) -> str:
    """Return the one line that a person types to install `packages`."""
    names = " ".join(sorted(set(packages)))
    command = f"apt-get update && apt-get install -y --no-install-recommends {names}"
    return command if os.geteuid() == 0 else f"sudo sh -c '{command}'"


def install(missing: Mapping[str, str]) -> None:
    """Install packages (server name to package name); raise `MissingBinaries` if apt-get fails."""
    packages = sorted(set(missing.values()))
    sys.stderr.write(f"Installing {' and '.join(packages)} with apt-get ...\n")
    with (
        _only_while_installing(_SERVICE_POLICY, _FORBID_ALL, 0o755),
        _only_while_installing(_CLUSTER_SETTINGS, _NO_CLUSTER, 0o644),
    ):
        try:
            _apt_get("update")
            _apt_get("install", "-y", "--no-install-recommends", *packages)
        except (subprocess.SubprocessError, OSError) as failure:
            raise MissingBinaries(list(missing), install_command(packages)) from failure


def _apt_get(*arguments: str) -> None:
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]
    done = subprocess.run(
        command,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_APT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout)
        raise subprocess.CalledProcessError(done.returncode, command)


@contextmanager
def _only_while_installing(path: Path, text: str, mode: int) -> Iterator[None]:
    """Have a file there for a while; one that was there already is somebody's decision and stays as it is."""
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
