"""Who makes a change, and from where: recorded in the audit log with the change."""

from typing import Final, Literal, NamedTuple

from pydantic_core import to_json

Channel = Literal["api", "cli", "dashboard", "worker", "database"]
CHANNEL_HEADER: Final = "Turnstile-Client"
"""In which the command line and the dashboard name themselves. It is a statement of the client."""


class Caller(NamedTuple):
    """The author of a change."""

    name: str | None
    """The name of the API token; `local` where no token is required."""
    address: str | None = None
    """The client's address, as the executor saw it."""
    channel: Channel = "api"

    def json(self) -> str:
        """Return the argument `in_caller` of the SQL functions."""
        return to_json(self._asdict()).decode()


DIRECTLY: Final = Caller("database", channel="database")
"""A command, or the owner of a file, with access to more than the API."""
