"""`executor tokens` against a real executor, and the first token of an installation without one."""

import asyncio

import pytest

from tests.integration.cli.conftest import CommandLines
from tests.support.processes import System
from turnstile.common.exit_codes import ExitCode


def test_without_the_role_admin_tokens_cannot_be_created_through_the_api(system: CommandLines) -> None:
    refused = system.executor("tokens", "create", "ci", "--role", "submit")
    assert refused.exit_code == ExitCode.FAILED
    assert "role 'admin'" in refused.err
    assert system.executor("tokens", "list").exit_code == ExitCode.FAILED


def test_the_first_admin_is_created_in_the_database_and_creates_lists_and_revokes(
    system: CommandLines, processes: System
) -> None:
    url = processes.database_url
    created = system.executor(
        "tokens", "create", "root", "--role", "admin", "--direct", TURNSTILE_DATABASE_URL=url
    )
    assert created.exit_code == 0, created.err
    admin = {"TURNSTILE_API_TOKEN": created.out.strip()}
    assert "shown only once" in created.err
    scope = ["--scope", "reports.", "--expires", "90d"]
    second = system.executor("tokens", "create", "ci", "--role", "submit", *scope, "--json", **admin)
    assert second.exit_code == 0, second.err
    assert (second.json["scope"], second.json["created_by"]) == (["reports."], "root")
    ci = {"TURNSTILE_API_TOKEN": second.json["token"]}
    assert "not for the action" in system.executor("submit", "billing.run", **ci).err
    listed = system.executor("tokens", "list", **admin)
    assert "reports." in listed.out
    assert second.json["token"] not in listed.out
    tokens = system.executor("tokens", "list", "--json", **admin).json["items"]
    (root,) = (each["id"] for each in tokens if each["name"] == "root")
    planned = system.executor("tokens", "revoke", str(root), str(second.json["id"]), "--dry-run", **admin)
    assert planned.exit_code == 0
    assert planned.out.splitlines() == [
        f"Would revoke {root} of root (admin)",
        f"Would revoke {second.json['id']} of ci (submit)",
    ]
    assert planned.err.count("warning: ") == 2
    harmless = system.executor("tokens", "revoke", str(second.json["id"]), "--dry-run", **admin)
    assert harmless.err == ""
    revoked = system.executor("tokens", "revoke", str(second.json["id"]), "--yes", **admin)
    assert revoked.out == f"{second.json['id']}: revoked; it was of ci\n"
    log = system.executor("audit-log", "--subject", "token", "--json", **admin).json["items"]
    # Other tests of the installation have created tokens before.
    assert [(i["verb"], i["user"], i["channel"]) for i in log[:3]] == [
        ("revoked", "root", "cli"),
        ("created", "root", "cli"),
        ("created", "database", "database"),
    ]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["ci"], ExitCode.USAGE),
        (["ci", "--role", "god"], ExitCode.USAGE),
        (["ci", "--role", "admin", "--scope", "a."], ExitCode.USAGE),
        (["ci", "--role", "read", "--expires", "soon"], ExitCode.USAGE),
        (["ci", "--role", "read", "--direct"], ExitCode.UNREACHABLE),
    ],
)
def test_what_cannot_be_created_says_why(alone: CommandLines, arguments: list[str], code: int) -> None:
    url = "postgresql://127.0.0.1:1/none"
    ended = alone.executor("tokens", "create", *arguments, TURNSTILE_DATABASE_URL=url)
    assert ended.exit_code == code
    assert "Traceback" not in ended.err


async def test_a_database_that_is_not_migrated_says_what_to_do(
    alone: CommandLines, empty_database_url: str
) -> None:
    arguments = ("tokens", "create", "root", "--role", "admin", "--direct")
    ended = await asyncio.to_thread(alone.executor, *arguments, TURNSTILE_DATABASE_URL=empty_database_url)
    assert ended.exit_code == ExitCode.FAILED
    assert "run 'executor migrate' first" in ended.err
