"""`executor actions`: apply, prune, limit, pause and delete against a real executor."""

import json

import pytest

from tests.integration.cli.conftest import CommandLines
from turnstile.common.action_definition import ActionDefinition
from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.client import Api, ApiUnreachable, Json

_FILE = "[{ref: kept}, {ref: one}, {ref: two}, {ref: three}]"


def test_apply_prints_its_changes_and_is_idempotent(system: CommandLines, ref: str) -> None:
    file = json.dumps([{"ref": ref, "max_concurrent": 3}, {"ref": f"{ref}.new", "runs": False}])
    would = system.executor("actions", "apply", "-", "--dry-run", stdin=file)
    assert would.out.splitlines() == [
        f"~ {ref}  max_concurrent: 1 -> 3, pool: empty -> default",
        f"+ {ref}.new  runs: false",
    ]
    assert system.executor("actions", "show", ref, "--json").json["max_concurrent"] == 1
    done = system.executor("actions", "apply", "-", "--json", stdin=file).json
    assert [action["step"] for action in done["actions"]] == ["change", "create"]
    assert system.executor("actions", "show", ref, "--json").json["max_concurrent"] == 3
    again = system.executor("actions", "apply", "-", stdin=file)
    assert again.out.splitlines() == [f"= {ref}", f"= {ref}.new"]
    shown = [line.split() for line in system.executor("actions", "show", f"{ref}.new").out.splitlines()]
    assert ["runs", "false"] in shown


def test_prune_deletes_actions_that_are_not_in_the_file(system: CommandLines, ref: str) -> None:
    items = system.executor("actions", "list", "--json").json["items"]
    fields = ("ref", "runner", "entrypoint", "max_concurrent", "concurrency_key", "timeout", "pool")
    others = [{name: item[name] for name in fields} for item in items if item["ref"] != ref]
    file = json.dumps(others)
    kept = system.executor("actions", "apply", "-", "--dry-run", stdin=file).out.splitlines()
    assert "-" not in {line[0] for line in kept}
    would = system.executor("actions", "apply", "-", "--prune", "--dry-run", stdin=file).out.splitlines()
    assert f"- {ref}" in would
    assert system.executor("actions", "show", ref).exit_code == 0
    done = system.executor("actions", "apply", "-", "--prune", "--yes", "--json", stdin=file)
    assert [a["ref"] for a in done.json["actions"] if a["step"] == "delete"] == [ref]
    assert system.executor("actions", "show", ref).exit_code == ExitCode.FAILED


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API becomes unreachable while it stores the action `two`."""

    def put(_: Api, path: str, body: bytes) -> Json:
        if path == "/actions/two":
            raise ApiUnreachable("it went away")
        return Json()

    kept = Json(ActionDefinition(ref="kept").model_dump(mode="json"))
    monkeypatch.setattr(Api, "get", lambda *_, **__: Json(items=[kept], next_cursor=None))
    monkeypatch.setattr(Api, "put", put)


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_apply_reports_what_it_did(alone: CommandLines) -> None:
    ended = alone.executor("actions", "apply", "-", "--json", stdin=_FILE)
    assert ended.exit_code == ExitCode.UNREACHABLE
    assert [(action["ref"], action["step"]) for action in ended.json["actions"]] == [
        ("kept", "keep"),
        ("one", "create"),
    ]
    assert ended.err == (
        "it went away\ntwo: unknown whether it was changed; earlier entries were applied, "
        "later entries were not; the file can be applied again\n"
    )


def test_a_new_limit_and_its_change_are_listed(system: CommandLines, ref: str) -> None:
    assert system.executor("actions", "limit", ref, "4").out == f"{ref}: limit 4, not paused\n"
    assert system.executor("actions", "limit", ref, "none", "--json").json["max_concurrent"] is None
    changes = system.executor("actions", "changes", ref).out
    assert "max_concurrent: 1 -> 4" in changes
    assert "max_concurrent: 4 -> none" in changes
