"""JSON that a user edits in an editor of their own, and what is done with it.

In: a JSON value. Out: the edited one, given to the change that needs it. What is refused can be edited again.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import typer

from turnstile.common.cli import CommandFailed, bad_input
from turnstile.executor.cli.arguments import read_parameters
from turnstile.executor.cli.confirmation import can_prompt
from turnstile.executor.cli.output import warn

_EDITORS: Final = ("VISUAL", "EDITOR")


def with_edited(parameters: Mapping[str, Any], change: Callable[[dict[str, Any]], None]) -> None:
    """Let the user edit parameters, and make the change with them.

    Raises CommandFailed where the user leaves them as they are, or there is no editor.
    """
    before = text = json.dumps(parameters, indent=2, ensure_ascii=False) + "\n"
    while True:
        text = _edited(text)
        if text == before:
            raise CommandFailed("the parameters are as they were; nothing was changed")
        try:
            return change(read_parameters(text))
        except CommandFailed as failure:
            if not can_prompt():
                raise
            warn(failure.message)
            if not typer.confirm("Edit again?", default=True, err=True):
                raise


def _edited(text: str) -> str:
    editor = next((found for name in _EDITORS if (found := os.environ.get(name))), None)
    if editor is None:
        raise bad_input("--edit: no editor is set; set EDITOR, like EDITOR=nano, or give --parameters")
    # The folder is the user's alone: parameters are shown only to who may read the execution.
    with TemporaryDirectory(prefix="turnstile-") as folder:
        path = Path(folder, "parameters.json")
        path.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(path)], check=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise CommandFailed(f"--edit: {editor}: {error}; nothing was changed") from None
        return path.read_text(encoding="utf-8")
