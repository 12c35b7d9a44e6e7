"""`executor cancel` and `executor retry`: by ids or by filter; a dry run changes nothing."""

from tests.integration.cli.conftest import CommandLines, Ended
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


def failed(system: CommandLines) -> int:
    execution_id = system.submit("cli.fail", "message=one")
    system.executor("watch", str(execution_id))
    return execution_id


def parameters_of(system: CommandLines, retried: Ended) -> object:
    assert retried.exit_code == 0, retried.err
    return system.executor("get", str(retried.json["id"]), "--json").json["parameters"]


def test_a_retry_takes_other_parameters_for_one_execution(system: CommandLines) -> None:
    one = failed(system)
    given = system.executor("retry", str(one), "--parameters", '{"message": "two"}', "--json")
    assert (given.json["retry_of"], parameters_of(system, given)) == (one, {"message": "two"})
    wrong = system.executor("retry", str(one), "--parameters", '{"mesage": "two"}')
    assert (wrong.exit_code, "unknown parameter" in wrong.err) == (ExitCode.FAILED, True)
    for arguments in (
        [str(one), str(one + 1), "--edit"],
        ["--edit", "--action", "cli.fail"],
        [str(one), "--edit", "--parameters", "{}"],
        [str(one), "--edit", "--dry-run"],
    ):
        refused = system.executor("retry", *arguments)
        assert refused.exit_code == ExitCode.USAGE
        assert "executor retry 4711 --edit" in refused.err


def test_parameters_are_edited_in_the_editor_of_the_user(system: CommandLines) -> None:
    one = str(failed(system))
    editing = {"VISUAL": "", "EDITOR": "sed -i s/one/three/"}
    edited = system.executor("retry", one, "--edit", "--json", **editing)
    assert parameters_of(system, edited) == {"message": "three"}
    for editor, code, words in (
        ("true", ExitCode.FAILED, "the parameters are as they were; nothing was changed"),
        ("false", ExitCode.FAILED, "--edit: false: "),
        ("sed -i s/}//", ExitCode.USAGE, "invalid JSON"),
        ("", ExitCode.USAGE, "set EDITOR, like EDITOR=nano"),
    ):
        refused = system.executor("retry", one, "--edit", **editing | {"EDITOR": editor})
        assert refused.exit_code == code
        assert words in refused.err
