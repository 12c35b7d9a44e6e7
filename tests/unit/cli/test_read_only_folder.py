"""The commands work in a read-only folder."""

from pathlib import Path

from tests.support.commands import ended


def test_a_command_needs_no_writable_folder() -> None:
    exit_codes = {
        "executor --help": 0,
        "worker actions --actions turnstile.stress.actions": 0,
        "stress run --help": 0,
        "executor submit some.action --api-url http://127.0.0.1:1": 3,
    }
    found = ended(*exit_codes, folder=Path("/proc"))
    assert [code for code, _ in found] == [*exit_codes.values()], found
