"""Settings of the executor service."""

from ipaddress import ip_address

from pydantic import Field, SecretStr

from common.action_definition import Duration
from common.settings import CommonSettings


class ExecutorSettings(CommonSettings):
    """What `executor serve` needs to know."""

    http_host: str = Field(default="127.0.0.1", description="Address of the HTTP API.")
    http_port: int = Field(default=8000, ge=0, le=65535, description="Port of the HTTP API; 0: any free one.")
    api_tokens: SecretStr = Field(default=SecretStr(""), description="Bearer tokens, separated by commas.")
    insecure: bool = Field(default=False, description="Serve other hosts without a token.")
    watchdog_interval: Duration = Field(default=1.0, gt=0, description="How often the watchdog looks.")
    dispatch_timeout: Duration = Field(default=30.0, gt=0, description="Unclaimed so long: offered again.")
    settle_timeout: Duration = Field(default=10.0, gt=0, description="Unsettled so long: told again.")
    stop_timeout: Duration = Field(
        default=10.0, gt=0, description="Not stopped so long after it should have: told again, then ended."
    )
    drain_timeout: Duration = Field(default=10.0, ge=0, description="Longest graceful stop.")
    batch_max: int = Field(default=500, ge=1, le=10_000, description="Most messages in one transaction.")
    database_connections: int = Field(default=6, ge=2, le=100, description="Size of the connection pool.")

    def tokens(self) -> list[str]:
        """Return the bearer tokens that are let in; none: everybody."""
        return [token.strip() for token in self.api_tokens.get_secret_value().split(",") if token.strip()]

    def is_exposed(self) -> bool:
        """Tell whether the API would serve other hosts without a token."""
        return not (self.tokens() or self.insecure or _is_loopback(self.http_host))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
