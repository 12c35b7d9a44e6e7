"""`executor logs`: what the attempts of an execution have written, also while they run."""

import time
from typing import Annotated, Final

import typer

from turnstile.executor.cli.arguments import ExecutionIdArgument
from turnstile.executor.cli.connection import Api, Json, with_api
from turnstile.executor.cli.following import LogReading
from turnstile.executor.cli.output import JsonOption, print_json, print_text, warn

_LOOK_SECONDS: Final = 0.5


@with_api
def logs(
    api: Api,
    execution_id: ExecutionIdArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until it ends; what runs is seen a second later.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, metavar="NUMBER", help="Only this attempt.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what an execution has logged.

    With --json: one JSON object for each piece. About the last 64 KiB of each attempt are kept.
    """
    reading = LogReading(api, execution_id, attempt=attempt)
    log = LogPrinter(as_json=as_json)
    while True:
        for piece in reading.fresh():
            log.print(piece)
        if reading.ended or not follow:
            break
        time.sleep(_LOOK_SECONDS)
    log.end()


class LogPrinter:
    """Prints pieces as they come: the text alone on stdout, where an attempt begins on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._attempt: int | None = None
        self._at_line_start = True

    def print(self, piece: Json) -> None:
        """Print one piece."""
        if self._as_json:
            print_json(piece, on_one_line=True)
            return
        attempt, text = piece["attempt"], piece["text"]
        if attempt != self._attempt:
            self.end()
            if self._attempt is not None or attempt > 1:
                warn(f"--- attempt {attempt} ---")
            self._attempt = attempt
        print_text(text)
        self._at_line_start = text.endswith("\n")

    def end(self) -> None:
        """End a line that was begun."""
        if not self._at_line_start:
            print_text("\n")
            self._at_line_start = True
