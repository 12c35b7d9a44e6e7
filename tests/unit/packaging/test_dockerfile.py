"""The Dockerfile: its instructions parse, what it copies exists, and the image does not run as root."""

import ast
import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INSTRUCTIONS = {
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "ONBUILD",
    "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
}  # fmt: skip


def parsed() -> list[tuple[str, str]]:
    """The instructions in order: word and arguments, continued lines joined, comments left out."""
    lines = [
        line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")
    ]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    pairs = [line.strip().split(maxsplit=1) for line in joined if line.strip()]
    return [(word, " ".join(rest)) for word, *rest in pairs]


def arguments_of(wanted: str) -> list[str]:
    return [arguments for word, arguments in parsed() if word == wanted]


def copied_from_the_tree() -> list[str]:
    """The sources of every COPY that takes from the build context and not from an earlier stage."""
    plain = [
        shlex.split(arguments) for arguments in arguments_of("COPY") if not arguments.startswith("--from=")
    ]
    return [source for words in plain for source in words[:-1]]


def is_sent_to_the_build(path: str) -> bool:
    """Whether .dockerignore lets the path through: the last rule that matches decides."""
    sent = True
    for rule in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = rule.removeprefix("!")
        if rule and not rule.startswith("#") and (fnmatch(path, pattern) or path.startswith(f"{pattern}/")):
            sent = rule.startswith("!")
    return sent


def test_every_line_is_an_instruction_with_arguments() -> None:
    assert [pair for pair in parsed() if pair[0] not in INSTRUCTIONS or not pair[1]] == []
    assert [word for word, _ in parsed()][:2] == ["ARG", "FROM"]


def test_exec_forms_are_lists_of_words() -> None:
    forms = [*arguments_of("CMD"), *(text.partition("CMD ")[2] for text in arguments_of("HEALTHCHECK"))]
    assert forms
    for form in forms:
        words = json.loads(form)
        assert words
        assert all(isinstance(word, str) for word in words)


def test_every_shell_command_is_well_formed() -> None:
    for command in arguments_of("RUN"):
        subprocess.run(["/bin/sh", "-n", "-c", command], check=True, timeout=10)


@pytest.mark.parametrize("source", copied_from_the_tree())
def test_everything_that_is_copied_exists_and_reaches_the_build(source: str) -> None:
    assert (ROOT / source).exists()
    assert is_sent_to_the_build(source)


def test_every_package_of_the_distribution_is_copied() -> None:
    packages = {path.name for path in (ROOT / "src" / "turnstile").iterdir() if path.is_symlink()}
    assert packages - {"stress", "localservers"} == packages & set(copied_from_the_tree())


def test_secrets_and_history_never_reach_the_build() -> None:
    assert not any(is_sent_to_the_build(path) for path in (".env", ".git", ".venv", "tests"))


def test_libraries_are_installed_by_hash_and_our_wheel_without_an_index() -> None:
    installs = re.findall(r"pip (?:--python \S+ )?install [^&]+", " ".join(arguments_of("RUN")))
    assert len(installs) == " ".join(arguments_of("RUN")).count(" install ")
    assert all("--require-hashes" in command or "--no-index" in command for command in installs)


def test_the_image_runs_as_a_user_who_is_not_root() -> None:
    last_stage = parsed()[max(i for i, (word, _) in enumerate(parsed()) if word == "FROM") :]
    users = [arguments for word, arguments in last_stage if word == "USER"]
    assert users == ["10001"]


def test_the_base_image_is_a_slim_python_that_we_support() -> None:
    (image,) = [value for value in arguments_of("ARG") if value.startswith("PYTHON_IMAGE=")]
    version = re.fullmatch(r"PYTHON_IMAGE=python:3\.(\d+)-slim-\w+", image)
    assert version is not None
    assert 11 <= int(version[1]) <= 13


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server on a free loopback port that answers /livez with `status`; yields the port."""

    class Livez(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Livez) as server:
        thread = threading.Thread(target=server.serve_forever, name="livez")
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(timeout=10)


def healthcheck(environment: dict[str, str]) -> int:
    """Run the image's health check here; the exit code is what Docker would see."""
    _, *arguments = json.loads(arguments_of("HEALTHCHECK")[0].partition("CMD ")[2])
    ast.parse(arguments[-1])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTILE_")}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=clean | environment, capture_output=True, timeout=30, check=False
    ).returncode


@pytest.mark.parametrize("variable", ["TURNSTILE_HTTP_PORT", "TURNSTILE_WORKER_HTTP_PORT"])
def test_the_health_check_asks_livez_of_the_service_that_runs(variable: str) -> None:
    with answering(200) as port:
        assert healthcheck({variable: str(port)}) == 0
    with answering(503) as port:
        assert healthcheck({variable: str(port)}) != 0


def test_the_health_check_fails_where_nothing_listens() -> None:
    with answering(200) as port:
        pass
    assert healthcheck({"TURNSTILE_HTTP_PORT": str(port)}) != 0
