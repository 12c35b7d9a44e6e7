"""Settings of retention, a part of the executor's."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from turnstile.common.action_definition import Duration


def _for_ever(value: object) -> object:
    return None if isinstance(value, str) and value.strip().lower() == "forever" else value


Age = Annotated[Duration | None, BeforeValidator(_for_ever)]
"""A duration, or `forever`."""


class RetentionSettings(BaseModel):
    """What is kept, where an action does not say otherwise."""

    retention_age: Age = Field(
        default=30 * 86400.0, description="Age at which ended executions are pruned, or: forever."
    )
    retention_count: int | None = Field(
        default=None, ge=0, le=1_000_000_000, description="Most ended executions of an action; unset: all."
    )
    retention_idle_keys: Age = Field(
        default=3600.0,
        description="How long nothing happens to a concurrency key until its queue is deleted, or: forever.",
    )
    retention_workers: Duration = Field(
        default=7 * 86400.0, ge=3600, description="How long workers that are gone are listed."
    )
    retention_changes: Duration = Field(
        default=365 * 86400.0, description="How long changes of actions are kept."
    )
    retention_dead_letters: Age = Field(
        default=30 * 86400.0, description="How long dead letters are kept, or: forever."
    )
    retention_dead_letters_count: int = Field(
        default=100_000, ge=0, le=10_000_000, description="Most dead letters kept; the oldest go first."
    )
    retention_dead_letters_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=0,
        le=2**50,
        description="Most bytes of dead letters kept; the oldest go first.",
    )
