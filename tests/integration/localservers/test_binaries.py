"""Finding the servers' programs, and what is said where they are missing."""

import os
from pathlib import Path

import pytest

from turnstile.localservers.binaries import Places, find_epmd, find_postgresql, find_rabbitmq, install_missing
from turnstile.localservers.errors import MissingBinaries


def program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="ascii")
    path.chmod(0o755)


def test_missing_binaries_give_the_exact_command_and_an_exit_code_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(MissingBinaries) as missing:
        install_missing(Places(path="", root=tmp_path))
    assert missing.value.missing == ("PostgreSQL", "RabbitMQ")
    assert missing.value.command in str(missing.value)
    assert "apt-get install -y --no-install-recommends postgresql rabbitmq-server" in missing.value.command
    assert missing.value.exit_code == 69


def test_only_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    program(tmp_path / "usr/lib/postgresql/15/bin/initdb")
    program(tmp_path / "usr/lib/postgresql/15/bin/postgres")
    with pytest.raises(MissingBinaries) as missing:
        install_missing(Places(path="", root=tmp_path))
    assert missing.value.missing == ("RabbitMQ",)
    assert "postgresql" not in missing.value.command


def test_the_newest_installed_postgresql_is_taken(tmp_path: Path) -> None:
    for version in ("9.6", "15", "16"):
        program(tmp_path / f"usr/lib/postgresql/{version}/bin/initdb")
        program(tmp_path / f"usr/lib/postgresql/{version}/bin/postgres")
    assert find_postgresql(Places(path="", root=tmp_path)) == tmp_path / "usr/lib/postgresql/16/bin"


def test_a_folder_of_path_goes_first(tmp_path: Path) -> None:
    program(tmp_path / "usr/lib/postgresql/16/bin/initdb")
    program(tmp_path / "usr/lib/postgresql/16/bin/postgres")
    program(tmp_path / "mine/initdb")
    program(tmp_path / "mine/postgres")
    assert find_postgresql(Places(path=str(tmp_path / "mine"), root=tmp_path)) == tmp_path / "mine"


def test_a_wrapper_of_rabbitmq_on_path_does_not_count(tmp_path: Path) -> None:
    program(tmp_path / "wrappers/rabbitmq-server")
    real = tmp_path / "usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin"
    program(real / "rabbitmq-server")
    program(real / "rabbitmq-env")
    assert find_rabbitmq(Places(path=str(tmp_path / "wrappers"), root=tmp_path)) == real


def test_epmd_is_found_where_erlang_keeps_it(tmp_path: Path) -> None:
    program(tmp_path / "usr/lib/erlang/erts-13.1.5/bin/epmd")
    found = find_epmd(Places(path=os.defpath.replace("/", "/nowhere/"), root=tmp_path))
    assert found == tmp_path / "usr/lib/erlang/erts-13.1.5/bin/epmd"
