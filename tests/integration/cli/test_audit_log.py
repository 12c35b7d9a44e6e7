"""`executor audit-log` against a real executor."""

import secrets

from tests.integration.cli.conftest import CommandLines
from turnstile.common.exit_codes import ExitCode


def test_it_shows_who_changed_what_by_which_way(system: CommandLines) -> None:
    ref = f"logged.{secrets.token_hex(4)}"
    # It waits, so that the cancel ends it.
    system.apply(ref=ref, pool="empty", max_concurrent=0)
    execution_id = system.submit(ref)
    assert system.executor("cancel", str(execution_id)).exit_code == 0
    assert system.executor("actions", "pause", ref).exit_code == 0
    ended = system.executor("audit-log", "--action", ref, "--json")
    assert ended.exit_code == 0, ended.err
    items = ended.json["items"]
    assert [(i["verb"], i["subject_kind"], i["subject"]) for i in items] == [
        ("paused", "action", ref),
        ("cancelled", "execution", str(execution_id)),
        ("created", "action", ref),
    ]
    assert {(i["channel"], i["address"]) for i in items} == {("cli", "127.0.0.1")}
    shown = system.executor("audit-log", "--subject", f"execution:{execution_id}")
    assert "cancelled" in shown.out
    assert f"execution {execution_id}" in shown.out
    assert "-> cancelled" in shown.out


def test_an_unknown_kind_is_refused_and_an_instant_without_a_zone_is_exit_code_2(
    system: CommandLines,
) -> None:
    assert system.executor("audit-log", "--subject", "planet:mars").exit_code == ExitCode.FAILED
    assert system.executor("audit-log", "--after", "2026-11-21").exit_code == ExitCode.USAGE
