"""What the processes that a worker starts inherit of its environment: all but the worker's own settings.

Those hold passwords and tokens. They are left out at the exec itself: what a process deletes later can still
be read in its /proc/<pid>/environ. Used for children, commands and the guardian.
"""

import os
from collections.abc import Collection
from typing import Final

_SETTINGS_PREFIX: Final = "TURNSTILE_"


def inherited_environment(passed: Collection[str] = ()) -> dict[str, str]:
    """Return our environment without `TURNSTILE_*`, but with those of them that are named in `passed`."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_SETTINGS_PREFIX) or name in passed
    }
