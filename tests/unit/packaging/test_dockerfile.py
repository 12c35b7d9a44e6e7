"""The Dockerfile: what it copies exists and reaches the build."""

import shlex
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def arguments_of(wanted: str) -> list[str]:
    """Return the arguments of every instruction of this name, with continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    pairs = [line.strip().split(maxsplit=1) for line in joined if line.strip()]
    return [" ".join(rest) for word, *rest in pairs if word == wanted]


def copied_from_the_tree() -> list[str]:
    """Return the sources of every COPY from the build context."""
    plain = [shlex.split(each) for each in arguments_of("COPY") if not each.startswith("--from=")]
    return [source for words in plain for source in words[:-1]]


def is_sent_to_the_build(path: str) -> bool:
    """Return whether .dockerignore lets the path through: the last rule that matches decides."""
    sent = True
    for rule in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = rule.removeprefix("!")
        if rule and not rule.startswith("#") and (fnmatch(path, pattern) or path.startswith(f"{pattern}/")):
            sent = rule.startswith("!")
    return sent


@pytest.mark.parametrize("source", copied_from_the_tree())
def test_everything_that_is_copied_exists_and_reaches_the_build(source: str) -> None:
    assert (ROOT / source).exists()
    assert is_sent_to_the_build(source)
