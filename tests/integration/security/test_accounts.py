"""What `setup-permissions` writes, prints and refuses without a server."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.conftest import CommandLines, alone, no_settings
from turnstile.executor.permissions.broker import definitions
from turnstile.executor.permissions.credentials import Login
from turnstile.executor.permissions.plan import Source
from turnstile.executor.permissions.rights import BROKER, grants_sql

__all__ = ["alone", "no_settings"]

ROOT = Path(__file__).parents[3]


def logins(prefix: str) -> list[Login]:
    return [
        Login(service=service, name=f"{prefix}-{service}", password="", source=Source.STORED)
        for service in BROKER
    ]


def set_up(alone: CommandLines, folder: Path, *options: str, vhost: str = "v", **settings: str) -> Any:
    arguments = ["--no-database", "--credentials", str(folder), *options]
    url = f"amqp://h:5671/{vhost}"
    return alone.executor("setup-permissions", *arguments, TURNSTILE_AMQP_URL=url, **settings)


def test_the_grants_that_migrations_run_are_those_of_the_table() -> None:
    assert (ROOT / "executor/permissions/rights.sql").read_text() == grants_sql(), "run 'make reference'"


def test_the_shipped_definitions_are_those_of_the_code_without_any_password() -> None:
    shipped = json.loads((ROOT / "deploy/rabbitmq/definitions.json").read_text())
    assert shipped == definitions("turnstile", logins("turnstile"), usable=False)
    assert {user["password_hash"] for user in shipped["users"]} == {""}


def test_without_a_management_url_the_definitions_are_written_with_the_next_command(
    alone: CommandLines, tmp_path: Path
) -> None:
    folder = tmp_path / "credentials"
    ended = set_up(alone, folder)
    assert ended.exit_code == 0
    file = folder / "rabbitmq-definitions.json"
    assert f"rabbitmqctl import_definitions {file}" in ended.out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = json.loads(file.read_text())
    hashes = {user.pop("password_hash") for user in written["users"]}
    expected = definitions("v", logins("turnstile-v"), usable=False)
    for user in expected["users"]:
        assert user.pop("password_hash") == ""
    assert written == expected
    assert len(hashes) == 3


def test_a_given_password_is_used_and_a_generated_one_is_reused(alone: CommandLines, tmp_path: Path) -> None:
    assert set_up(alone, tmp_path).exit_code == 0
    before = (tmp_path / "executor.env").read_text()
    (tmp_path / "secret").write_text("a-password@of/mine\n")
    again = set_up(alone, tmp_path, TURNSTILE_WORKER_PASSWORD_FILE=str(tmp_path / "secret"))
    assert again.exit_code == 0
    assert (tmp_path / "executor.env").read_text() == before
    assert (
        "TURNSTILE_AMQP_URL=amqp://turnstile-v-worker:a-password%40of%2Fmine@h:5671/v\n"
        in (tmp_path / "worker.env").read_text()
    )
    assert "a-password" not in again.out + again.err


def test_an_installation_keeps_the_names_in_its_credentials_folder(
    alone: CommandLines, tmp_path: Path
) -> None:
    assert set_up(alone, tmp_path, "--prefix", "turnstile").exit_code == 0
    before = (tmp_path / "executor.env").read_text()
    assert "//turnstile-executor:" in before
    assert set_up(alone, tmp_path).exit_code == 0
    assert (tmp_path / "executor.env").read_text() == before


def test_a_dry_run_writes_nothing_and_a_rotation_is_confirmed_before_its_first_change(
    alone: CommandLines, tmp_path: Path
) -> None:
    def files() -> dict[Path, str]:
        return {file: file.read_text() for file in folder.iterdir()}

    folder = tmp_path / "credentials"
    ended = set_up(alone, folder, "--dry-run")
    assert ended.exit_code == 0
    assert "nothing was changed" in ended.out
    assert not folder.exists()
    assert set_up(alone, folder).exit_code == 0
    before = files()
    refused = set_up(alone, folder, "--rotate")
    assert (refused.exit_code, "add --yes" in refused.err) == (2, True)
    of_another = set_up(alone, folder, "--rotate", vhost="w")
    assert of_another.exit_code == 1
    assert "of another installation (vhost 'v', database 'turnstile'); name another folder" in of_another.err
    assert files() == before
    assert set_up(alone, folder, "--rotate", "--yes").exit_code == 0
    assert files() != before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"TURNSTILE_WORKER_PASSWORD": "short"}, "TURNSTILE_WORKER_PASSWORD: expected at least 12"),
        ({"TURNSTILE_WORKER_PASSWORD_FILE": "/no/such"}, "TURNSTILE_WORKER_PASSWORD_FILE: /no/such: No such"),
        ({"TURNSTILE_MANAGEMENT_URL": "ftp://u:s3cret-s3cret@h"}, "TURNSTILE_MANAGEMENT_URL: "),
        (
            {"TURNSTILE_MANAGEMENT_URL": "http://turnstile-v-worker:s3cret-s3cret@h"},
            "connect as an administrator",
        ),
    ],
)
def test_an_invalid_setting_is_named_without_its_secret(
    alone: CommandLines, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    ended = set_up(alone, tmp_path, **settings)
    assert ended.exit_code != 0
    assert message in ended.err
    assert "s3cret" not in ended.err
