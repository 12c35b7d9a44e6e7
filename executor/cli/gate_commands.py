"""What resources and pools have in common on the command line: change, pause, resume, queue, history.

In: the words and columns of one kind of gate. Out: its commands, and the request that creates or changes one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import typer

from turnstile.executor.cli.arguments import encode
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    for_each,
    instant,
    print_fields,
    print_line,
    show,
    warn,
)
from turnstile.executor.cli.pagination import CursorOption, QueueLimitOption, print_queue
from turnstile.executor.cli.values import ChangesOption, print_changes

Command = TypeVar("Command", bound=Callable[..., None])
WAITING_COLUMNS: Final[Columns] = {
    "POSITION": "position",
    "ID": "id",
    "ACTION": "action_ref",
    "KEY": "concurrency_key",
    "PRIORITY": "priority",
}
"""The first columns of what waits at a gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateKind:
    """One kind of gate: its routes, and how it is shown."""

    path: str
    noun: str
    name: Any
    """The argument that names one or more."""
    state: Callable[[Json], str]
    """What a change prints after the name."""
    holders: Columns
    no_holder: str
    waiting: Columns
    queue_fields: Callable[[Json], Iterator[tuple[str, object]]]

    def change(self, api: Api, name: str, given: Mapping[str, object], *, as_json: bool) -> None:
        """Change these fields of a gate; create it, and say so, if there is none of this name."""
        body = encode(given)

        def change(name: str) -> Json:
            gate, is_new = api.patch_or_put(f"{self.path}/{name}", body)
            if is_new:
                warn(f"{name}: created; there was no {self.noun} of this name")
            return gate

        for_each([name], change, self._changed, as_json=as_json)

    def switch(self, api: Api, names: Sequence[str], verb: str, *, as_json: bool) -> None:
        """Pause or resume gates."""
        for_each(names, lambda name: api.post(f"{self.path}/{name}/{verb}"), self._changed, as_json=as_json)

    def print_queue(self, found: Json) -> None:
        """Print the holders of a gate, and what waits at it."""
        print_fields(self.queue_fields(found))
        print_line("")
        print_queue(
            found,
            self.holders,
            self.waiting,
            no_holders=self.no_holder,
            nothing_waits="No waiting executions",
        )

    def _changed(self, name: str, gate: Json) -> str:
        for warning in gate["warnings"]:
            warn(warning)
        return f"{name}: {self.state(gate)}, {'paused' if gate['paused'] else 'not paused'}"


def add_gate_commands(
    app: typer.Typer, kind: GateKind, *, pause: str, resume: str, queue: str, history: str
) -> None:
    """Add the commands that every kind has; the texts are their help."""

    @app.command("pause")
    @with_api
    @_with_help(pause)
    def pause_gates(api: Api, names: list[str] = kind.name, as_json: JsonOption = False) -> None:
        kind.switch(api, names, "pause", as_json=as_json)

    @app.command("resume")
    @with_api
    @_with_help(resume)
    def resume_gates(api: Api, names: list[str] = kind.name, as_json: JsonOption = False) -> None:
        kind.switch(api, names, "resume", as_json=as_json)

    @app.command("queue")
    @with_api
    @_with_help(queue)
    def list_queue(
        api: Api,
        name: str = kind.name,
        *,
        limit: QueueLimitOption = 50,
        cursor: CursorOption = None,
        as_json: JsonOption = False,
    ) -> None:
        found = api.get(f"{kind.path}/{name}/queue", {"limit": limit, "cursor": cursor})
        show(found, kind.print_queue, as_json=as_json)

    @app.command("history")
    @with_api
    @_with_help(history)
    def list_changes(
        api: Api, name: str = kind.name, limit: ChangesOption = 50, as_json: JsonOption = False
    ) -> None:
        print_changes(api, f"{kind.path}/{name}/changes", limit, as_json=as_json)


def _with_help(text: str) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        command.__doc__ = text
        return command

    return decorate


def dates(gate: Json) -> Iterator[tuple[str, object]]:
    """Yield when a gate was created and last changed."""
    yield "created_at", instant(gate["created_at"])
    yield "updated_at", instant(gate["updated_at"])
