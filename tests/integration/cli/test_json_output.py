"""Every command with `--json`, against a real installation: each line is as its schema says."""

import asyncio
import json
import os
import secrets
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.integration.cli.conftest import CommandLines, Ended, until
from tests.integration.cli.test_dead_letters import names_in, send
from tests.integration.cli.test_webhooks import until_failed
from tests.support.json_output import command_of, commands_with_json, problem_of
from tests.support.ledger import LOST_WORKER, session_on
from tests.support.processes import System
from turnstile.common.exit_codes import ExitCode
from turnstile.json_output import JSON_OUTPUT

_EXAMPLES = Path(__file__).parents[3] / "docs" / "commands.jsonl"
_DEFINITIONS = """
resources: [{name: licences, capacity: 2}]
pools: [{name: empty, weights: {REF: 2}}]
actions: [{ref: REF, pool: empty, max_concurrent: 1, concurrency_key: /customer, uses: [licences]}]
schedules: [{name: nightly, action_ref: REF, cron: "0 6 * * MON-FRI", parameters: {customer: 1}}]
"""


class Recorder:
    """Runs commands with `--json` and checks each line that they print; keeps the first one of each."""

    def __init__(self, system: CommandLines) -> None:
        self._system = system
        self._known = commands_with_json()
        self.examples: dict[str, dict[str, Any]] = {}

    def run(
        self, line: str, *, code: int = 0, stdin: str | None = None, settings: Mapping[str, str] | None = None
    ) -> Ended:
        words = shlex.split(line)
        program = {"executor": self._system.executor, "worker": self._system.worker}[words[0]]
        given = {} if stdin is None else {"stdin": stdin}
        ended = program(*words[1:], "--json", **given, **(settings or {}))
        assert ended.exit_code == code, (line, ended.exit_code, ended.err)
        assert ended.lines, line
        command = command_of(words, self._known)
        for document in ended.lines:
            assert (problem := problem_of(command, document)) is None, (problem, document)
        example = {"command": command, "called": f"{line} --json", "prints": ended.lines[0]}
        self.examples.setdefault(command, example)
        return ended

    @property
    def not_run(self) -> set[str]:
        return self._known - self.examples.keys()


@pytest.fixture
def recorder(system: CommandLines) -> Recorder:
    return Recorder(system)


@pytest.fixture
def stopped(database_url: str, module_urls: tuple[str, str]) -> dict[str, str]:
    """An installation whose services are stopped."""
    return {"TURNSTILE_DATABASE_URL": database_url, "TURNSTILE_AMQP_URL": module_urls[1]}


def test_every_command_prints_what_its_schema_says(
    recorder: Recorder, system: CommandLines, processes: System, stopped: dict[str, str], tmp_path: Path
) -> None:
    ref = f"reports.{secrets.token_hex(2)}"
    _run_definitions(recorder, ref)
    _run_executions(recorder, system, ref)
    _run_submission(recorder, processes, ref)
    _run_gates(recorder, ref)
    _run_schedules(recorder)
    _run_operation(recorder, system, processes, ref)
    _run_administration(recorder, processes, tmp_path)
    recorder.run("executor restore-check --dry-run", settings=stopped)
    recorder.run("executor doctor", settings=stopped)
    recorder.run(f"executor cancel --action {ref} --yes")
    recorder.run(f"executor actions keys delete {ref} 7 --dry-run")
    recorder.run(f"executor actions keys delete {ref} 7 --yes")
    recorder.run(f"executor actions delete {ref} --dry-run")
    recorder.run(f"executor actions delete {ref} --yes")
    recorder.run("executor resources delete licences --dry-run")
    recorder.run("executor resources delete licences --yes")
    assert recorder.not_run == set()
    if "WRITE_EXAMPLES" in os.environ:
        _write_examples(recorder, {ref: "reports.render", f"{tmp_path}/": ""})


def _write_examples(recorder: Recorder, names: dict[str, str]) -> None:
    """Write what was printed, without what is of this machine only."""
    recorder.examples["executor tokens create"]["prints"]["token"] = "TOKEN"
    # One of sixty.
    del recorder.examples["executor history"]["prints"]["points"][1:]
    text = "".join(f"{json.dumps(recorder.examples[name])}\n" for name in JSON_OUTPUT)
    here = {str(_EXAMPLES.parents[1]): "/srv", f'"{socket.gethostname()}"': '"host-1"'}
    for name, shown in {**names, **here}.items():
        text = text.replace(name, shown)
    _EXAMPLES.write_text(text, encoding="utf-8")


def _run_definitions(recorder: Recorder, ref: str) -> None:
    file = _DEFINITIONS.replace("REF", ref)
    recorder.run("executor actions apply - --dry-run", stdin=file)
    recorder.run("executor actions apply -", stdin=file)
    recorder.run(f"executor actions keys set {ref} 7 --max-concurrent 5")
    recorder.run(f"executor actions keys list {ref}")
    recorder.run("executor actions list")
    recorder.run(f"executor actions limit {ref} 2")
    recorder.run(f"executor actions pause {ref}")
    recorder.run(f"executor actions resume {ref}")
    recorder.run(f"executor actions show {ref}")
    recorder.run("executor actions show cli.add")
    recorder.run(f"executor actions failures {ref}")
    recorder.run(f"executor actions changes {ref}")
    recorder.run("worker actions --actions tests.integration.cli.served_actions")


def _run_executions(recorder: Recorder, system: CommandLines, ref: str) -> None:
    waiting = recorder.run(f"executor submit {ref} customer=7").json["id"]
    lines = f'{{"action_ref": "{ref}", "parameters": {{"customer": 8}}}}\n{{"action_ref": "nope"}}\nx\n'
    recorder.run("executor submit --bulk -", stdin=lines, code=ExitCode.FAILED)
    lines = '{"action_ref": "cli.add", "parameters": {"a": 1}}\n{"action_ref": "cli.fail"}\n'
    recorder.run("executor submit --bulk - --wait", stdin=lines, code=ExitCode.FAILED)
    ended = recorder.run("executor submit cli.add a=1 b=2 --wait").json["id"]
    failed = recorder.run("executor submit cli.fail --wait", code=ExitCode.FAILED).json["id"]
    recorder.run(f"executor get {ended}")
    recorder.run(f"executor get {waiting}")
    recorder.run("executor list --limit 2")
    recorder.run(f"executor watch {failed}", code=ExitCode.FAILED)
    until(lambda: system.executor("logs", str(failed), "--json").out)
    recorder.run(f"executor logs {failed}")
    recorder.run(f"executor queue stats {ref}")
    recorder.run(f"executor queue list {ref}")
    retried = recorder.run(f"executor retry {failed}").json["id"]
    recorder.run(f"executor retry {failed} --dry-run")
    recorder.run("executor retry --action cli.fail --status failed --limit 1 --yes")
    recorder.run(f"executor watch {retried}", code=ExitCode.FAILED)
    recorder.run(f"executor cancel {waiting} --dry-run")
    recorder.run(f"executor cancel {waiting}")


def _run_submission(recorder: Recorder, processes: System, ref: str) -> None:
    async def submit() -> UUID:
        async with session_on(processes.database_url) as connection:
            request_id: UUID = await connection.fetchval("SELECT turnstile.submit($1)", ref)
            return request_id

    recorder.run(f"executor submission {asyncio.run(submit())}")


def _run_gates(recorder: Recorder, ref: str) -> None:
    recorder.run(f"executor submit {ref} customer=9")
    for kind, name, shows in (("resources", "licences", "get"), ("pools", "empty", "show")):
        recorder.run(f"executor {kind} list")
        recorder.run(f"executor {kind} {shows} {name}")
        recorder.run(f"executor {kind} queue {name}")
        recorder.run(f"executor {kind} pause {name}")
        recorder.run(f"executor {kind} resume {name}")
        recorder.run(f"executor {kind} history {name}")
    recorder.run("executor resources put licences --capacity 3 --rate 100/1m")
    recorder.run("executor pools set empty --order arrival")
    recorder.run("executor pools set empty --order fair")


def _run_schedules(recorder: Recorder) -> None:
    recorder.run("executor schedules list")
    recorder.run("executor schedules get nightly")
    recorder.run("executor schedules put nightly --timezone Europe/Berlin --jitter 5m")
    recorder.run("executor schedules put nightly --every 15m --overlap skip")
    recorder.run("executor schedules put nightly --cron '0 6 * * MON-FRI'")
    recorder.run("executor schedules next nightly --limit 2 --after 2026-11-28T00:00:00Z")
    line = "executor schedules preview --cron '30 2 * * *' --timezone Europe/Berlin"
    recorder.run(f"{line} --after 2026-10-24T12:00:00Z --limit 2")
    recorder.run("executor schedules pause nightly")
    recorder.run("executor schedules run nightly")
    recorder.run("executor schedules resume nightly")
    recorder.run("executor schedules history nightly")
    recorder.run("executor schedules delete nightly --dry-run")
    recorder.run("executor schedules delete nightly --yes")


def _run_operation(recorder: Recorder, system: CommandLines, processes: System, ref: str) -> None:
    recorder.run("executor audit")
    recorder.run("executor audit-log --limit 2")
    recorder.run("executor top")
    recorder.run("executor history")
    workers = recorder.run("executor workers list").json["items"]
    (silent,) = (each["id"] for each in workers if each["name"] == "silent")
    recorder.run(f"executor workers show {silent}")
    recorder.run(f"executor workers drain {silent} --dry-run")
    asyncio.run(_lose_a_worker(processes))
    recorder.run("executor workers acknowledge lost")
    called = recorder.run(f"executor submit {ref} customer=5 --callback-url http://127.0.0.1:1/hook")
    execution_id = called.json["id"]
    recorder.run(f"executor cancel {execution_id}")
    until_failed(system, execution_id)
    recorder.run("executor webhooks list --state failed --limit 1")
    recorder.run(f"executor webhooks replay {execution_id} --dry-run")
    recorder.run(f"executor webhooks replay {execution_id}")
    # A name of digits alone would be an id.
    name = f"letter-{secrets.token_hex(4)}"
    send(processes, **{name: b"{nope", f"{name}-2": b"{nope"})
    until(lambda: name in names_in(system) and f"{name}-2" in names_in(system))
    recorder.run("executor dead-letters list --limit 1")
    recorder.run("executor attention", code=1)
    recorder.run(f"executor dead-letters show {name}")
    recorder.run(f"executor dead-letters replay {name} --dry-run")
    recorder.run(f"executor dead-letters replay {name}")
    recorder.run(f"executor dead-letters purge {name}-2 --dry-run")
    recorder.run(f"executor dead-letters purge {name}-2 --yes")


async def _lose_a_worker(processes: System) -> None:
    async with session_on(processes.database_url) as connection:
        await connection.execute(LOST_WORKER)


def _run_administration(recorder: Recorder, processes: System, tmp_path: Path) -> None:
    urls = {"TURNSTILE_DATABASE_URL": processes.database_url, "TURNSTILE_AMQP_URL": processes.amqp_url}
    recorder.run(f"executor export {tmp_path}/turnstile.dump", settings=urls)
    created = recorder.run("executor tokens create ops --role admin --direct", settings=urls)
    admin = {"TURNSTILE_API_TOKEN": created.json["token"]}
    token_id = recorder.run("executor tokens create ci --role submit --expires 90d", settings=admin).json[
        "id"
    ]
    recorder.run("executor tokens list --limit 2", settings=admin)
    recorder.run(f"executor tokens revoke {token_id} --dry-run", settings=admin)
    recorder.run(f"executor tokens revoke {token_id} --yes", settings=admin)
    recorder.run(f"executor tokens revoke {created.json['id']} --yes", settings=admin)
