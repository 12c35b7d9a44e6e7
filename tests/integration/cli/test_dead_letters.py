"""`executor dead-letters` and `executor audit` against a real executor and a real worker."""

import asyncio
import json
import secrets

from tests.integration.cli.conftest import CommandLines, until
from tests.support.processes import System
from tests.support.traffic import publishing, request
from turnstile.common.exit_codes import ExitCode


def send(processes: System, **messages: bytes) -> None:
    """Publish requests with these message ids."""

    async def publish() -> None:
        async with publishing(processes.amqp_url) as publisher:
            await publisher.publish([request(body, message_id=name) for name, body in messages.items()])

    asyncio.run(publish())


def names_in(system: CommandLines, *arguments: str) -> list[str]:
    ended = system.executor("dead-letters", "list", "--json", *arguments)
    assert ended.exit_code == 0, ended.err
    return [letter["message_id"] for letter in ended.json["items"]]


def test_a_dead_letter_is_replayed_unchanged_or_with_a_corrected_body(
    system: CommandLines, processes: System
) -> None:
    ref = f"late.{secrets.token_hex(4)}"
    # Other files share the system.
    assert system.executor("dead-letters", "purge", "--all", "--yes").exit_code == 0
    send(processes, first=json.dumps({"action_ref": ref}).encode(), second=b"{nope", third=b"\xff")
    until(lambda: len(names_in(system)) == 3)
    assert names_in(system, "--order", "newest") == names_in(system)[::-1]
    listed = system.executor("dead-letters", "list", "--code", "unknown_action").out
    assert (ref in listed, "JSON" in listed) == (True, False)
    shown = system.executor("dead-letters", "show", "first").out
    assert "unknown_action" in shown
    assert f'{{"action_ref": "{ref}"}}' in shown
    assert system.executor("dead-letters", "show", "third", "--json").json["body_encoding"] == "base64"

    system.apply(ref=ref, runner="command", entrypoint=["true"])
    third = system.executor("dead-letters", "show", "third", "--json").json["id"]
    planned = system.executor("dead-letters", "replay", "--code", "unknown_action", "--dry-run")
    assert (planned.exit_code, planned.out) == (0, "Would replay 1 message\n")
    assert len(names_in(system)) == 3
    for arguments in (["first"], [third, "--body", "-"]):
        replayed = system.executor("dead-letters", "replay", *arguments, stdin=f'{{"action_ref": "{ref}"}}')
        assert (replayed.exit_code, replayed.out.strip()) == (0, "Replayed 1 message")
    absent = system.executor("dead-letters", "replay", "second", "--body", "/no such file")
    assert (absent.exit_code, "/no such file" in absent.err) == (ExitCode.USAGE, True)
    assert names_in(system) == ["second"]
    named = ("dead-letters", "purge", "second", "fourth", "--json")
    planned = system.executor(*named, "--dry-run")
    assert (planned.exit_code, planned.json) == (
        ExitCode.FAILED,
        {"dry_run": True, "matched": 1, "refused": [], "missing": ["fourth"]},
    )
    unattended = system.executor(*named, stdin="y\n")
    assert (unattended.exit_code, "add --yes" in unattended.err) == (ExitCode.USAGE, True)
    assert names_in(system) == ["second"]
    whole = system.executor("dead-letters", "purge", "--all", "--dry-run")
    assert (whole.exit_code, whole.out) == (0, "Would purge 1 message\n")
    purged = system.executor(*named, "--yes")
    assert purged.exit_code == ExitCode.FAILED
    assert purged.json == {"done": 1, "refused": [], "missing": ["fourth"], "left": 0}
    assert "No dead letters" in system.executor("dead-letters", "list").out


def test_exactly_one_selection_is_required(system: CommandLines) -> None:
    for arguments in ([], ["--all", "--code", "x"], ["one", "--all"]):
        for verb in ("replay", "purge"):
            assert system.executor("dead-letters", verb, *arguments).exit_code == ExitCode.USAGE
    absent = system.executor("dead-letters", "show", "no such letter/..")
    assert (absent.exit_code, absent.err.split(":")[0]) == (ExitCode.FAILED, "not_found")


def test_an_audit_without_violations_is_exit_code_0(system: CommandLines, alone: CommandLines) -> None:
    whole = system.executor("audit", "--json")
    assert whole.out, whole.err
    assert [check for check in whole.json["checks"] if check["faults"]] == []
    assert (whole.exit_code, whole.json["clean"]) == (0, True)
    shown = system.executor("audit", "--live")
    assert shown.exit_code == 0
    assert "kept_row" in shown.out
    assert "attempts" not in shown.out
    assert shown.out.splitlines()[-1].endswith(": no violations")
    assert alone.executor("audit").exit_code == ExitCode.UNREACHABLE
