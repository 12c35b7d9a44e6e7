"""Settings of webhooks, a part of the executor's."""

from typing import Annotated

from pydantic import BaseModel, Field, SecretStr, field_validator

from turnstile.common.action_definition import Duration
from turnstile.common.command_line import ENVIRONMENT_ONLY
from turnstile.executor.webhooks.signature import read_secrets


class WebhookSettings(BaseModel):
    """How ends are POSTed to the URLs that executions name."""

    webhook_secret: Annotated[SecretStr, ENVIRONMENT_ONLY] = Field(
        default=SecretStr(""),
        description="Signs webhooks: whsec_ and base64, or plain text; by commas while one replaces another.",
    )
    webhook_timeout: Duration = Field(
        default=10.0, gt=0, le=300, description="Longest POST of a webhook, its connection included."
    )
    webhook_attempts: int = Field(default=12, ge=1, le=1000, description="POSTs before a webhook has failed.")
    webhook_retry_delay: Duration = Field(
        default=5.0, gt=0, description="Wait before the second POST; each further one is twice as long."
    )
    webhook_retry_delay_max: Duration = Field(default=3600.0, gt=0, description="No wait is longer.")
    webhook_age_max: Duration = Field(
        default=86400.0,
        gt=0,
        description="A webhook that is due and pending for longer has failed, whatever was tried.",
    )
    webhook_concurrency: int = Field(
        default=256,
        ge=1,
        le=10_000,
        description="Webhooks under way at once: half of them to new receivers, a quarter to prompt ones, the"
        " rest to slow and to silent ones.",
    )
    webhook_allow_private: bool = Field(
        default=False, description="POST to private, loopback and link-local addresses too."
    )
    webhook_keep: Duration = Field(
        default=7 * 86400.0, description="How long delivered and failed webhooks are kept."
    )

    @field_validator("webhook_secret")
    @classmethod
    def _can_sign(cls, value: SecretStr) -> SecretStr:
        read_secrets(value.get_secret_value())
        return value

    def webhook_lease_seconds(self) -> float:
        """Return how long a claimed webhook is one replica's: the POST, and what is around it."""
        return self.webhook_timeout * 2

    def webhook_secrets(self) -> list[bytes]:
        """Return the keys that sign webhooks; none: they are not signed."""
        return read_secrets(self.webhook_secret.get_secret_value())
