"""A file of actions is read as a whole, or refused with everything that is wrong with it."""

from pathlib import Path

import pytest

from turnstile.common.command_line import EXIT_USAGE, CommandFailed
from turnstile.executor.cli.action_file import read_action_file


def refusal(folder: Path, text: str | bytes) -> str:
    file = folder / "actions.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(CommandFailed) as failed:
        read_action_file(str(file))
    assert failed.value.exit_code == EXIT_USAGE
    return failed.value.message.replace(f"{folder}/", "")


@pytest.mark.parametrize(
    "text", ["- {ref: a, timeout: 5m}\n- {ref: b}", "actions:\n- {ref: a, timeout: 5m}\n- {ref: b}"]
)
def test_a_list_and_a_mapping_with_a_list_say_the_same(tmp_path: Path, text: str) -> None:
    file = tmp_path / "actions.yaml"
    file.write_text(text)
    assert [(d.ref, d.timeout) for d in read_action_file(str(file))] == [("a", 300.0), ("b", None)]


def test_every_wrong_entry_is_told_with_file_entry_and_field(tmp_path: Path) -> None:
    told = refusal(
        tmp_path, "- {ref: a, max_concurent: 2}\n- {ref: b, timeout: soon}\n- {ref: 'x y'}\n- 7\n"
    ).splitlines()
    assert [line.split(": ")[:3] for line in told] == [
        ["actions.yaml", "entry 1 (a)", "max_concurent"],
        ["actions.yaml", "entry 2 (b)", "timeout"],
        ["actions.yaml", "entry 3 (x y)", "ref"],
        ["actions.yaml", "entry 4", "definition"],
    ]
    assert "known are ref, runner" in told[0]
    assert "'30s'" in told[1]


def test_a_field_that_retry_does_not_have_is_answered_with_those_it_has(tmp_path: Path) -> None:
    told = refusal(tmp_path, "- {ref: a, retry: {attempts: 3}}")
    assert "retry.attempts: no such field; known are max_attempts, delay, " in told
    assert "ref, runner" not in told


def test_an_action_that_is_defined_twice_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "- {ref: a}\n- {ref: a}") == (
        "actions.yaml: entry 2 (a): ref: this action is defined twice; keep one of them"
    )


def test_a_field_that_is_given_twice_is_refused_with_its_place(tmp_path: Path) -> None:
    assert "line 1, column 24: 'timeout' is given twice" in refusal(
        tmp_path, "- {ref: a, timeout: 1, timeout: 2}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "ref: a",
        "a: [",
        "- {? [1, 2] : 3}",
        "- !!python/object:os.system {}",
        "- !!map [a]",
        "- !!timestamp x",
        "- !!bool x",
        '- !!int ""',
        b"\xff",
        "[" * 2000,
    ],
)
def test_what_is_no_list_of_actions_is_refused_with_an_example(tmp_path: Path, text: str | bytes) -> None:
    told = refusal(tmp_path, text)
    assert told.startswith("actions.yaml: ")
    assert "{ref: reports.render, max_concurrent: 3}" in told


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No such file"):
        read_action_file(str(tmp_path / "nothing.yaml"))
