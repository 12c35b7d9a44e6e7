"""Finding the servers' programs, and the error where they are missing."""

import os
from pathlib import Path

import pytest

from turnstile.localservers.binaries import (
    SearchPath,
    find_epmd,
    find_postgresql,
    find_rabbitmq,
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
