"""What `--json` prints where a command composes it: everything else is a response of the HTTP API.

Generic in the items of the API, which a command passes on as it received them. `turnstile.json_output` names
the document of every command.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import Field

Item = TypeVar("Item")
Other = TypeVar("Other")
Name = TypeVar("Name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Items(Generic[Item]):
    """A whole list."""

    items: Sequence[Item]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage(Generic[Item]):
    """The first part of a list, as far as `--limit`."""

    items: Sequence[Item]
    next_cursor: Annotated[str | None, Field(description="Where the list continues. Null: it has ended.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkTotal(Generic[Item, Other]):
    """The result of all calls of a cancel or retry that names executions by a filter, or of a dry run."""

    dry_run: bool
    matched: Annotated[int, Field(description="Matching executions.")]
    changed: Annotated[int, Field(description="Executions that were ended, requested to stop, or retried.")]
    items: Sequence[Item]
    left_out: Annotated[Sequence[Other], Field(description="What is left out in a dry run, and why.")]
    left_out_is_partial: Annotated[bool, Field(description="Only the newest were counted in `left_out`.")]
    next_cursor: Annotated[str | None, Field(description="Not null: `--limit` was reached, and more match.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled(Generic[Item, Name]):
    """The result of a replay or a purge."""

    done: Annotated[int, Field(description="How many were replayed or purged.")]
    refused: Annotated[Sequence[Item], Field(description="Those that were not, and why.")]
    missing: Annotated[Sequence[Name], Field(description="Names that match nothing.")]
    left: Annotated[int, Field(description="How many are left: repeat the command.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Generic[Item, Name]):
    """The result of a dry run of a replay or a purge."""

    matched: Annotated[int, Field(description="How many would be replayed or purged.")]
    refused: Annotated[Sequence[Item], Field(description="Those that would not, and why.")]
    missing: Annotated[Sequence[Name], Field(description="Names that match nothing.")]
    dry_run: Literal[True] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionDeletionPlan:
    """What would be deleted with an action."""

    action_ref: str
    running: Annotated[int, Field(description="An action with running executions is kept.")]
    waiting: int
    dry_run: Literal[True] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceDeletionPlan:
    """What keeps a resource from being deleted: it is deleted only if all numbers are 0."""

    name: str
    users: Annotated[int, Field(description="Actions that use it.")]
    held: int
    waiting: int
    dry_run: Literal[True] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDeletionPlan:
    """What ends with a schedule."""

    name: str
    next_at: datetime | None
    dry_run: Literal[True] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """The value of a field before and after."""

    old: Any
    new: Any


StepKind: TypeAlias = Literal["create", "change", "keep", "delete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedGate:
    """What was done with a resource, a pool or a schedule."""

    name: str
    step: StepKind
    changes: dict[str, FieldChange]
    refused: Annotated[str | None, Field(description="Why it was not done.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedAction:
    """What was done with an action."""

    ref: str
    step: StepKind
    changes: dict[str, FieldChange]
    refused: Annotated[str | None, Field(description="Why it was not done.")]
    kept_keys: Annotated[
        Sequence[str], Field(description="Keys whose settings stay, although the file omits them.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFile:
    """What applying a file did, or would do."""

    dry_run: bool
    resources: Sequence[AppliedGate]
    pools: Sequence[AppliedGate]
    actions: Sequence[AppliedAction]
    schedules: Sequence[AppliedGate]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopScreen(Generic[Item, Other]):
    """Queues and workers at one instant."""

    read_at: datetime
    queues: Sequence[Item]
    queues_total: Annotated[int, Field(description="Matching queues, also those beyond the first 500.")]
    degraded: Annotated[dict[str, str], Field(description="What does not work, and why.")]
    workers: Sequence[Other]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLine:
    """A line of `submit --bulk` that was rejected."""

    line: int
    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A backup, and what it contains."""

    file: str
    bytes: int
    last_id: Annotated[int, Field(description="The newest execution in it.")]
    at: Annotated[datetime, Field(description="The instant of its snapshot.")]
    running: int
    offered: Annotated[int, Field(description="Granted, and not started.")]
    waiting: int
    delayed: int
    requests_left: Annotated[
        int | None,
        Field(description="Requests in RabbitMQ that no executor has taken yet. Null: it cannot be reached."),
    ]
