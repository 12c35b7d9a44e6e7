"""An action whose process can start once a file exists."""

import os
from pathlib import Path

from turnstile.worker import Context, action, on_start

FILE = "CORE_STARTED_FILE"


@on_start
def read_model(state: object) -> None:
    """Fail while the file is missing."""
    state.model = Path(os.environ[FILE]).read_text()  # type: ignore[attr-defined]


@action("started.use")
async def use(context: Context) -> str:
    model: str = context.state.model
    return model
