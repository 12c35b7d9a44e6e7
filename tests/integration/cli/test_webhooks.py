"""`executor webhooks` against a real executor; every webhook fails, because it must not call loopback."""

import secrets

import pytest

from tests.integration.cli.conftest import CommandLines, until


@pytest.fixture
def failed(system: CommandLines) -> int:
    """The id of an execution with a failed webhook."""
    ref = f"called.{secrets.token_hex(4)}"
    system.apply(ref=ref, pool="empty", callback_url="http://127.0.0.1:1/hook")
    execution_id = system.submit(ref)
    assert system.executor("cancel", str(execution_id)).exit_code == 0
    until_failed(system, execution_id)
    return execution_id


def until_failed(system: CommandLines, execution_id: int) -> None:
    until(lambda: execution_id in ids_in(system, "--state", "failed"))


def ids_in(system: CommandLines, *arguments: str) -> list[int]:
    ended = system.executor("webhooks", "list", "--json", *arguments)
    assert ended.exit_code == 0, ended.err
    return [item["execution_id"] for item in ended.json["items"]]


def test_a_failed_webhook_is_listed_with_its_error_and_replayed(system: CommandLines, failed: int) -> None:
    listed = system.executor("webhooks", "list", "--state", "failed")
    assert "private addresses are not called" in listed.out
    assert failed not in ids_in(system, "--state", "delivered")
    for arguments in (["--all"], [str(failed), str(failed)]):
        planned = system.executor("webhooks", "replay", *arguments, "--dry-run", "--json")
        assert (planned.exit_code, planned.json["dry_run"], planned.json["matched"] >= 1) == (0, True, True)
    assert failed in ids_in(system, "--state", "failed")
    replayed = system.executor("webhooks", "replay", str(failed))
    assert (replayed.exit_code, replayed.out) == (0, "Replayed 1 webhook\n")
    until_failed(system, failed)
    everything = system.executor("webhooks", "replay", "--all", "--yes", "--json")
    assert everything.exit_code == 0
    assert everything.json["done"] >= 1
