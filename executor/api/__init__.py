"""The HTTP API of the executor service, under `/api/v1`.

In: JSON over HTTP, read as strictly as a message. Out: the shapes of `executor.reading`, or a problem
document that names the field and the remedy. `app` puts it together; `executions`, `actions`, `workers`
and `health` are the routes; `problems` says every way to be refused.
"""

from turnstile.executor.api.app import create_app
from turnstile.executor.api.services import ApiServices

__all__ = ["ApiServices", "create_app"]
