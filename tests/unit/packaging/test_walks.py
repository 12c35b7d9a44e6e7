"""The walks of docs/architecture.md are short, and lead through files and functions that exist."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "docs" / "architecture.md").read_text()
AIMS: Final = {"One execution": 19, "A changed limit": 9, "A reclaim": 7, "`queue-stats`": 5}
_STEP: Final = re.compile(r"^(\d+)\. `([^`]+)`, `([^`]+)`: .+\.$", re.MULTILINE)


def walk(title: str) -> tuple[int, list[tuple[str, str]]]:
    """Return the number in the heading of a walk, and the file and function of each of its steps."""
    head, _, rest = PAGE.partition(f"\n### {title}")[2].partition("\n")
    steps = _STEP.findall(re.split(r"\n##", rest)[0])
    assert [int(number) for number, *_ in steps] == list(range(1, len(steps) + 1))
    return int(re.findall(r"(\d+) files", head)[0]), [(path, function) for _, path, function in steps]


def has(text: str, function: str) -> bool:
    """Return whether a file has a function, or a method of a class, or a part of a statement."""
    owner, _, name = function.rpartition(".")
    if owner:
        text = re.split(rf"^class {owner}\b", text, flags=re.MULTILINE)[1].partition("\nclass ")[0]
    return re.search(rf"\bdef {name}\(|^-- {name}:", text, re.MULTILINE) is not None


@pytest.mark.parametrize("title", AIMS)
def test_a_walk_has_the_number_of_files_that_it_says_and_not_more_than_its_aim(title: str) -> None:
    said, steps = walk(title)
    assert said == len({path for path, _ in steps}) == len(steps) <= AIMS[title]


@pytest.mark.parametrize("title", AIMS)
def test_each_step_of_a_walk_names_a_function_of_its_file(title: str) -> None:
    missing = [step for step in walk(title)[1] if not has((ROOT / step[0]).read_text(), step[1])]
    assert missing == []


def test_the_table_of_questions_names_files_that_exist() -> None:
    table = PAGE.partition("## Where to look")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:common|executor|worker)/[^`]*)`", table)
    assert len(named) > 20
    assert [each for each in named if not (ROOT / each).exists()] == []
