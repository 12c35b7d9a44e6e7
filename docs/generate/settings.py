"""Every environment variable of the two services."""

from generate.tables import default_of, table
from turnstile.common.settings import CommonSettings
from turnstile.executor.settings import ExecutorSettings
from turnstile.worker.settings import WorkerSettings

_HEAD = """# Settings

Environment variables; a command line option takes precedence over its variable. Durations are written
`250ms`, `30s`, `5m`, `1h30m`, or as a number of seconds. A wrong value ends the process with one line that
names the variable.
"""


def page() -> str:
    """Return the page."""
    common = set(CommonSettings.model_fields)
    parts = [
        _HEAD,
        "\n## Of both services\n",
        _rows(CommonSettings, common),
        "\n## Of the executor\n",
        _rows(ExecutorSettings, set(ExecutorSettings.model_fields) - common),
        "\n## Of the worker\n",
        _rows(WorkerSettings, set(WorkerSettings.model_fields) - common),
    ]
    return "\n".join(parts)


def _rows(model: type[CommonSettings], names: set[str]) -> str:
    return table(
        ("variable", "default", "meaning"),
        [
            (f"`TURNSTILE_{name.upper()}`", default_of(field), field.description or "")
            for name, field in model.model_fields.items()
            if name in names
        ],
    )
