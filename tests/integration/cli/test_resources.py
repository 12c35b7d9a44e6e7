"""`executor resources`, `pools`, `actions keys`, and resources and pools in a file, with a real executor."""

import json
import secrets

import pytest

from tests.integration.cli.conftest import CommandLines
from turnstile.common.exit_codes import ExitCode


@pytest.fixture
def name() -> str:
    return f"cad-{secrets.token_hex(4)}"


def test_a_resource_is_created_changed_and_deleted(system: CommandLines, name: str) -> None:
    created = system.executor("resources", "put", name, "--capacity", "10", "--rank", "4")
    assert created.out == f"{name}: capacity 10, not paused\n"
    assert created.err == f"{name}: created; there was no resource of this name\n"
    ended = system.executor("resources", "put", name, "--rate", "100/1m", "--order", "fair", "--json")
    changed = ended.json
    assert ended.err == ""
    assert (changed["capacity"], changed["rank"], changed["order"]) == (10, 4, "fair")
    assert changed["rate"] == {"starts": 100, "per": 60.0}
    unlimited = system.executor(
        "resources", "put", name, "--capacity", "none", "--rank", "none", "--rate", "none", "--json"
    ).json
    assert (unlimited["capacity"], unlimited["rank"], unlimited["rate"]) == (None, None, None)
    assert system.executor("resources", "pause", name).out == f"{name}: capacity none, paused\n"
    assert system.executor("resources", "resume", name).out == f"{name}: capacity none, not paused\n"
    assert name in system.executor("resources", "list").out
    assert "capacity" in system.executor("resources", "get", name).out
    assert system.executor("resources", "delete", name, "--yes").out == f"Deleted {name}\n"
    assert system.executor("resources", "get", name).exit_code == ExitCode.FAILED
    history = system.executor("resources", "history", name).out
    assert "capacity: 10 -> none" in history
    assert "rate.per: none -> 1m" in history


def test_a_key_gets_its_own_limit_and_loses_it(system: CommandLines, ref: str) -> None:
    system.apply(ref=ref, submitter_keys=True, max_concurrent=1)
    keys = ("actions", "keys")
    assert (
        system.executor(*keys, "set", ref, "a/b", "--max-concurrent", "5").out == "a/b: limit 5, weight 1\n"
    )
    assert system.executor(*keys, "set", ref, "a/b", "--weight", "2").out == "a/b: limit 5, weight 2\n"
    assert system.executor(*keys, "set", ref, "a/b").exit_code == ExitCode.USAGE
    assert "a/b" in system.executor(*keys, "list", ref).out
    assert system.executor(*keys, "delete", ref, "a/b", "--yes").out == "Deleted the settings of a/b\n"
    assert system.executor(*keys, "list", ref, "--json").json == {"items": []}


def test_a_file_defines_resources_and_pools_before_the_actions_that_use_them(
    system: CommandLines, ref: str, name: str
) -> None:
    file = json.dumps(
        {
            "actions": [
                {"ref": ref, "concurrency_key": "/who", "uses": [name], "keys": {"7": {"max_concurrent": 5}}}
            ],
            "resources": [{"name": name, "capacity": 3}],
            "pools": [{"name": name, "weights": {ref: 3}}],
        }
    )
    would = system.executor("actions", "apply", "-", "--dry-run", stdin=file).out.splitlines()
    assert would[0] == f"+ resource {name}  capacity: 3"
    assert would[1] == f"+ pool {name}  weights: {ref} 3"
    assert would[2].startswith(f"~ {ref}  ")
    assert f"uses: none -> {name}" in would[2]
    assert 'keys.7: none -> {"max_concurrent": 5}' in would[2]
    done = system.executor("actions", "apply", "-", "--json", stdin=file).json
    assert [(each["name"], each["step"]) for each in done["resources"]] == [(name, "create")]
    assert [(each["name"], each["step"]) for each in done["pools"]] == [(name, "create")]
    assert [(each["ref"], each["step"], each["refused"]) for each in done["actions"]] == [
        (ref, "change", None)
    ]
    again = system.executor("actions", "apply", "-", stdin=file)
    assert again.out.splitlines() == [f"= resource {name}", f"= pool {name}", f"= {ref}"]
    wrong = json.dumps([{"ref": ref, "uses": [f"{name}.none"]}])
    refused = system.executor("actions", "apply", "-", "--dry-run", stdin=wrong)
    assert refused.exit_code == ExitCode.USAGE
    assert "there is no resource" in refused.err


def test_a_pool_gets_order_and_weights_and_is_paused(system: CommandLines, ref: str, name: str) -> None:
    system.apply(ref=ref, pool=name)
    settings = ("pools", "set", name, "--order", "arrival", "--weight", f"{ref}=3", "--weight", "gone=2")
    changed = system.executor(*settings)
    assert changed.out == f"{name}: order arrival, weights {ref} 3, gone 2, not paused\n"
    assert changed.err == "gone has a weight, and is not in this pool\n"
    assert system.executor("pools", "set", name, "--weight", "gone=1", "--json").json["weights"] == {ref: 3}
    created = system.executor("pools", "set", f"{name}-new", "--order", "arrival")
    assert created.err == f"{name}-new: created; there was no pool of this name\n"
    for wrong in (f"{ref}=17", f"{ref}", "a b=2"):
        assert system.executor("pools", "set", name, "--weight", wrong).exit_code == ExitCode.USAGE
    assert system.executor("pools", "pause", name).out.endswith(", paused\n")
    assert "paused" in system.executor("pools", "list").out
    execution_id = str(system.executor("submit", ref, "--json").json["id"])
    assert f"no live worker in pool {name}" in system.executor("get", execution_id).out
    assert "No waiting executions" in system.executor("pools", "queue", name).out
    assert f"{ref}  3 " in system.executor("pools", "show", name).out
    assert system.executor("pools", "resume", name).out.endswith(", not paused\n")
    assert "order: fair -> arrival" in system.executor("pools", "history", name).out
    assert system.executor("pools", "resume", f"{name}x").exit_code == ExitCode.FAILED
