"""`executor cancel` and `executor retry`: by ids or by filter; a dry run changes nothing."""

from tests.integration.cli.conftest import CommandLines
from turnstile.common.exit_codes import ExitCode


def submit_many(system: CommandLines, ref: str, count: int, *arguments: str) -> list[int]:
    ended = system.executor("submit", ref, "--bulk", "-", "--json", *arguments, stdin="{}\n" * count)
    assert ended.exit_code == 0, ended.err
    return [answer["id"] for answer in ended.lines]


def test_cancel_by_id_cancels_what_it_can_and_names_the_others(system: CommandLines, ref: str) -> None:
    # None of them is at a worker.
    system.apply(ref=ref, max_concurrent=0, pool="empty")
    first, second = submit_many(system, ref, 2)
    ended = system.executor("cancel", str(first), "999999999", str(second), "--reason", "not needed")
    assert (ended.exit_code, ended.out.splitlines()) == (
        ExitCode.FAILED,
        [f"Cancelled {first}", f"Cancelled {second}"],
    )
    assert ended.err.startswith("999999999: not_found")
    again = system.executor("cancel", str(first))
    assert (again.exit_code, "already_terminal" in again.err) == (ExitCode.FAILED, True)
