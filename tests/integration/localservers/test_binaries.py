"""Finding the servers' programs, and the error where they are missing."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turnstile.localservers import binaries
from turnstile.localservers.binaries import (
    SearchPath,
    find_epmd,
    find_postgresql,
    find_rabbitmq,
    install,
    install_missing,
)
from turnstile.localservers.errors import MissingBinaries


def installed(root: Path, *programs: str) -> Path:
    """Create programs under a root folder."""
    for name in programs:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n", encoding="ascii")
        path.chmod(0o755)
    return root


POSTGRESQL_15 = ("usr/lib/postgresql/15/bin/initdb", "usr/lib/postgresql/15/bin/postgres")


def test_missing_binaries_name_the_install_command_and_have_their_own_exit_code(tmp_path: Path) -> None:
    with pytest.raises(MissingBinaries) as missing:
        install_missing(SearchPath(path="", root=tmp_path))
    assert missing.value.missing == ("PostgreSQL", "RabbitMQ")
    assert missing.value.command in str(missing.value)
    assert "apt-get install -y --no-install-recommends postgresql rabbitmq-server" in missing.value.command
    assert missing.value.exit_code == 69


@pytest.mark.parametrize(
    ("programs", "path", "found"),
    [
        pytest.param(
            (*POSTGRESQL_15, "usr/lib/postgresql/9.6/bin/initdb", "usr/lib/postgresql/9.6/bin/postgres"),
            "",
            "usr/lib/postgresql/15/bin",
            id="newest",
        ),
        pytest.param((*POSTGRESQL_15, "mine/initdb", "mine/postgres"), "mine", "mine", id="PATH first"),
    ],
)
def test_postgresql_is_found(tmp_path: Path, programs: tuple[str, ...], path: str, found: str) -> None:
    installed(tmp_path, *programs)
    search = SearchPath(path=str(tmp_path / path) if path else "", root=tmp_path)
    assert find_postgresql(search) == tmp_path / found


def test_a_wrapper_of_rabbitmq_on_path_does_not_count(tmp_path: Path) -> None:
    real = "usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin"
    installed(tmp_path, "wrappers/rabbitmq-server", f"{real}/rabbitmq-server", f"{real}/rabbitmq-env")
    found = find_rabbitmq(SearchPath(path=str(tmp_path / "wrappers"), root=tmp_path))
    assert found == tmp_path / real


def test_epmd_is_found_in_the_folder_of_erlang(tmp_path: Path) -> None:
    epmd = "usr/lib/erlang/erts-13.1.5/bin/epmd"
    installed(tmp_path, epmd)
    found = find_epmd(SearchPath(path=os.defpath.replace("/", "/nowhere/"), root=tmp_path))
    assert found == tmp_path / epmd


_APT_GET = """#!/bin/sh
cd {folder}
mkdir running || echo overlap >> faults
test -e policy || echo 'no policy' >> faults
sleep 0.1
rmdir running
test -e asked && exit 0
touch asked
echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)'
exit 100
"""


def test_installations_wait_for_each_other_and_for_the_lock_of_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "_SERVICE_POLICY", tmp_path / "policy")
    monkeypatch.setattr(binaries, "_CLUSTER_SETTINGS", tmp_path / "settings")
    installed(tmp_path, "bin/apt-get").joinpath("bin/apt-get").write_text(_APT_GET.format(folder=tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(install, [{"A": "a"}, {"B": "b"}]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked", "bin"]
