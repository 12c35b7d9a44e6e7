"""What every command prints with `--json`: the types from which its JSON Schema is made.

The documentation and the tests read it; no command does. Most types are those of the HTTP API's responses,
the others are of the commands that compose them. `python -m turnstile.json_output docs` writes the schema and
the tables of `docs/scripts.md`; `docs/commands.jsonl` has a line that each command has printed in a test.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.exit_codes import MEANINGS, ExitCode
from turnstile.common.schemas import History, QueueStats
from turnstile.executor.api.actions import ActionDeleted
from turnstile.executor.api.attention import Attention
from turnstile.executor.api.bulk import BulkItem
from turnstile.executor.api.dead_letters import DeadLetterDetail, RefusedLetter
from turnstile.executor.api.executions import Acceptance, Cancelled
from turnstile.executor.api.gates import ResourceDeleted
from turnstile.executor.api.keys import KeyDeleted
from turnstile.executor.api.problems import Problem
from turnstile.executor.api.queues import QueueWithHistory
from turnstile.executor.api.retry import RetryAcceptance
from turnstile.executor.api.schedules import Occurrences, ScheduleDeleted
from turnstile.executor.api.webhooks import RefusedWebhook, WebhookDetail
from turnstile.executor.cli.backup import RestoreStep
from turnstile.executor.cli.documents import (
    ActionDeletionPlan,
    AppliedFile,
    BulkTotal,
    ExportedFile,
    Handled,
    ItemPage,
    Items,
    Planned,
    RefusedLine,
    ResourceDeletionPlan,
    ScheduleDeletionPlan,
    TopScreen,
)
from turnstile.executor.dashboard.failures import ActionFailures
from turnstile.executor.doctor.findings import Finding
from turnstile.executor.history.bulk_selection import LeftOut
from turnstile.executor.queries.audit import AuditReport
from turnstile.executor.queries.schemas import (
    ActionDetail,
    ActionQueuePage,
    AuditLogEntry,
    ChangeEntry,
    CreatedToken,
    ExecutionDetail,
    ExecutionRecord,
    GatedExecutionDetail,
    GatedExecutionRecord,
    LogEntry,
    PoolQueuePage,
    ResourceQueuePage,
    StoredAction,
    StoredKey,
    StoredPool,
    StoredResource,
    StoredSchedule,
    SubmissionDetail,
    TokenDetail,
    WorkerDetail,
    WorkerPage,
)

SCHEMA: Final = "commands.schema.json"
PAGE: Final = "scripts.md"


class AcceptedLine(Acceptance):
    """A line of `submit --bulk` that was accepted."""

    line: int


class ProblemOfLine(Problem):
    """A line of `submit --bulk` that the API rejected."""

    line: int


class EndedLine(ExecutionDetail):
    """The execution of a line of `submit --bulk --wait`."""

    line: int


class GatedEndedLine(GatedExecutionDetail):
    """The execution of a line of `submit --bulk --wait`, with its gates."""

    line: int


class KeyPlan(StoredKey):
    """Settings of a key that would be deleted."""

    dry_run: Literal[True]


class TokenPlan(TokenDetail):
    """A token that would be revoked."""

    dry_run: Literal[True]


class WorkerPlan(WorkerPage):
    """A worker that would be drained, if it is live."""

    dry_run: Literal[True]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonOutput:
    """What one command prints."""

    type: Any
    """The type of a document."""
    for_each: str | None = None
    """One document for each of these, each on a line of its own; None: one document."""

    @property
    def sentence(self) -> str:
        """How many documents it prints."""
        return "one document" if self.for_each is None else f"one document for each {self.for_each}"


_Execution: Final = GatedExecutionDetail | ExecutionDetail
_Line: Final = AcceptedLine | ProblemOfLine | RefusedLine | GatedEndedLine | EndedLine
_Bulk: Final = BulkTotal[BulkItem, LeftOut]
_Webhooks: Final = Handled[RefusedWebhook, int] | Planned[RefusedWebhook, int]
_Letters: Final = Handled[RefusedLetter, str] | Planned[RefusedLetter, str]
_BY_ID: Final = "id; with a filter or --dry-run, one document"

JSON_OUTPUT: Final = {
    "executor doctor": JsonOutput(type=Finding, for_each="check"),
    "executor export": JsonOutput(type=ExportedFile),
    "executor restore-check": JsonOutput(type=RestoreStep, for_each="step"),
    "executor submit": JsonOutput(
        type=Acceptance | _Execution | _Line, for_each="line of --bulk; otherwise one document"
    ),
    "executor get": JsonOutput(type=_Execution),
    "executor submission": JsonOutput(type=SubmissionDetail),
    "executor list": JsonOutput(type=ItemPage[GatedExecutionRecord | ExecutionRecord]),
    "executor watch": JsonOutput(type=_Execution, for_each="change of the status"),
    "executor logs": JsonOutput(type=LogEntry, for_each="piece of the logs"),
    "executor cancel": JsonOutput(type=Cancelled | _Bulk, for_each=_BY_ID),
    "executor retry": JsonOutput(type=RetryAcceptance | _Bulk, for_each=_BY_ID),
    "executor audit": JsonOutput(type=AuditReport),
    "executor audit-log": JsonOutput(type=ItemPage[AuditLogEntry]),
    "executor attention": JsonOutput(type=Attention),
    "executor history": JsonOutput(type=History),
    "executor top": JsonOutput(type=TopScreen[QueueWithHistory, WorkerDetail]),
    "executor actions list": JsonOutput(type=Items[StoredAction]),
    "executor actions show": JsonOutput(type=ActionDetail),
    "executor actions failures": JsonOutput(type=ActionFailures),
    "executor actions apply": JsonOutput(type=AppliedFile),
    "executor actions pause": JsonOutput(type=ActionDetail, for_each="action"),
    "executor actions resume": JsonOutput(type=ActionDetail, for_each="action"),
    "executor actions limit": JsonOutput(type=ActionDetail),
    "executor actions delete": JsonOutput(type=ActionDeleted | ActionDeletionPlan, for_each="action"),
    "executor actions changes": JsonOutput(type=ItemPage[ChangeEntry]),
    "executor actions keys list": JsonOutput(type=Items[StoredKey]),
    "executor actions keys set": JsonOutput(type=StoredKey),
    "executor actions keys delete": JsonOutput(type=KeyDeleted | KeyPlan, for_each="key"),
    "executor resources list": JsonOutput(type=Items[StoredResource]),
    "executor resources get": JsonOutput(type=StoredResource),
    "executor resources put": JsonOutput(type=StoredResource),
    "executor resources delete": JsonOutput(type=ResourceDeleted | ResourceDeletionPlan, for_each="resource"),
    "executor resources pause": JsonOutput(type=StoredResource, for_each="resource"),
    "executor resources resume": JsonOutput(type=StoredResource, for_each="resource"),
    "executor resources queue": JsonOutput(type=ResourceQueuePage),
    "executor resources history": JsonOutput(type=ItemPage[ChangeEntry]),
    "executor pools list": JsonOutput(type=Items[StoredPool]),
    "executor pools show": JsonOutput(type=StoredPool),
    "executor pools set": JsonOutput(type=StoredPool),
    "executor pools pause": JsonOutput(type=StoredPool, for_each="pool"),
    "executor pools resume": JsonOutput(type=StoredPool, for_each="pool"),
    "executor pools queue": JsonOutput(type=PoolQueuePage),
    "executor pools history": JsonOutput(type=ItemPage[ChangeEntry]),
    "executor schedules list": JsonOutput(type=Items[StoredSchedule]),
    "executor schedules get": JsonOutput(type=StoredSchedule),
    "executor schedules put": JsonOutput(type=StoredSchedule),
    "executor schedules delete": JsonOutput(type=ScheduleDeleted | ScheduleDeletionPlan, for_each="schedule"),
    "executor schedules pause": JsonOutput(type=StoredSchedule, for_each="schedule"),
    "executor schedules resume": JsonOutput(type=StoredSchedule, for_each="schedule"),
    "executor schedules run": JsonOutput(type=Acceptance, for_each="schedule"),
    "executor schedules next": JsonOutput(type=Occurrences),
    "executor schedules preview": JsonOutput(type=Occurrences),
    "executor schedules history": JsonOutput(type=ItemPage[ChangeEntry]),
    "executor queue stats": JsonOutput(type=QueueStats),
    "executor queue list": JsonOutput(type=ActionQueuePage),
    "executor workers list": JsonOutput(type=ItemPage[WorkerDetail]),
    "executor workers show": JsonOutput(type=WorkerPage),
    "executor workers acknowledge": JsonOutput(type=WorkerDetail, for_each="worker"),
    "executor workers drain": JsonOutput(type=WorkerDetail | WorkerPlan, for_each="worker"),
    "executor tokens create": JsonOutput(type=CreatedToken),
    "executor tokens list": JsonOutput(type=ItemPage[TokenDetail]),
    "executor tokens revoke": JsonOutput(type=TokenDetail | TokenPlan, for_each="token"),
    "executor webhooks list": JsonOutput(type=ItemPage[WebhookDetail]),
    "executor webhooks replay": JsonOutput(type=_Webhooks),
    "executor dead-letters list": JsonOutput(type=ItemPage[DeadLetterDetail]),
    "executor dead-letters show": JsonOutput(type=DeadLetterDetail),
    "executor dead-letters replay": JsonOutput(type=_Letters),
    "executor dead-letters purge": JsonOutput(type=_Letters),
    "worker actions": JsonOutput(type=list[ActionDefinition]),
}


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False


def schemas() -> dict[str, Any]:
    """Return one JSON Schema whose `$defs` have a definition for each command, and for each type in it."""
    inputs: list[Any] = [
        (command, "serialization", TypeAdapter(output.type)) for command, output in JSON_OUTPUT.items()
    ]
    by_key, shared = TypeAdapter.json_schemas(inputs, schema_generator=_Generator)
    commands = {command: by_key[command, "serialization"] for command in JSON_OUTPUT}
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "What the commands of Turnstile print with --json",
        "$defs": {**commands, **shared.get("$defs", {})},
    }


def schema_text() -> str:
    """Return `schemas()` as text, with a line for each definition."""
    whole = schemas()
    definitions = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}"
        for name, each in whole.pop("$defs").items()
    )
    first = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in whole.items())
    return f'{{\n{first} "$defs": {{\n{definitions}\n }}\n}}\n'


def page_text(page: str) -> str:
    """Return the page `docs/scripts.md` with the tables of this version between its marks."""
    codes = [f"| {code.value} | {MEANINGS[code]} |\n" for code in ExitCode]
    commands = [f"| `{command}` | {output.sentence} |\n" for command, output in JSON_OUTPUT.items()]
    for mark, rows in (("exit codes", codes), ("commands", commands)):
        begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
        before, _, rest = page.partition(begin)
        table, _, behind = rest.partition(end)
        head = table.splitlines(keepends=True)[:2]
        page = "".join([before, begin, *head, *rows, end, behind])
    return page


def write(docs: Path) -> None:
    """Write the schema and the tables into the folder of the documentation."""
    (docs / SCHEMA).write_text(schema_text(), encoding="utf-8")
    page = docs / PAGE
    page.write_text(page_text(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
