"""Every field of an action's definition."""

from generate.tables import fields_table
from turnstile.common.action_definition import ActionDefinition, RetryDefinition

_HEAD = """# Fields of an action

The same in `@action(...)`, in `actions.yaml`, over HTTP and in the database.

```yaml
- ref: reports.render
  entrypoint: reports:render
  max_concurrent: 3
  timeout: 5m
  retry: {max_attempts: 3, delay: 2s}
```
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, fields_table(ActionDefinition), "\n## retry\n", fields_table(RetryDefinition)])
