"""What actions, resources and pools have in common on the command line.

In: the routes, words and columns of one kind of definition. Out: its commands: list, show, pause, resume,
changes and queue; and the request that creates or changes one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from turnstile.common.domain.errors import Code
from turnstile.executor.cli.arguments import encode
from turnstile.executor.cli.client import Api, ApiRefused, Json, with_api
from turnstile.executor.cli.output import (
    Columns,
    CursorOption,
    JsonOption,
    Listing,
    QueueLimitOption,
    changed_fields,
    for_each,
    instant,
    limit_of,
    print_fields,
    print_line,
    print_queue,
    show,
    warn,
)

_CHANGES: Final[Columns] = {
    "CHANGED": lambda change: instant(change["changed_at"]),
    "BY": "changed_by",
    "CHANGE": "change",
    "FIELDS": lambda change: changed_fields(change["old"], change["new"]),
}
_WAITING: Final[Columns] = {
    "POSITION": "position",
    "ID": "id",
    "ACTION": "action_ref",
    "KEY": "concurrency_key",
    "PRIORITY": "priority",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """How the queue of a resource or a pool is printed."""

    fields: Callable[[Json], Iterator[tuple[str, object]]]
    holders: Columns
    no_holder: str
    waiting: Columns
    """The last columns of what waits."""

    def print(self, found: Json) -> None:
        """Print the state of the queue, its holders, and what waits."""
        print_fields(self.fields(found))
        print_line("")
        print_queue(
            found,
            self.holders,
            {**_WAITING, **self.waiting},
            no_holders=self.no_holder,
            nothing_waits="No waiting executions",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """One kind of definition; each method adds a command to `app`, with its help."""

    app: typer.Typer
    noun: str
    name: Any
    """The argument that names one or more."""
    state: Callable[[Json], str]
    """What a change prints after the name."""

    def path(self, name: str) -> str:
        """Return the path of one definition."""
        return f"/{self.noun}s/{name}"

    def add_list(self, help_text: str, *, empty: str, columns: Columns) -> None:
        """Add the command that lists all."""
        listing = Listing(path=f"/{self.noun}s", empty=empty, columns=columns)

        def list_all(api: Api, as_json: JsonOption = False) -> None:
            listing.print_all(api, as_json=as_json)

        self._add("list", list_all, help_text)

    def add_show(self, verb: str, help_text: str, printer: Callable[[Json], None]) -> None:
        """Add the command that shows one."""

        def show_one(api: Api, name: Annotated[str, self.name], as_json: JsonOption = False) -> None:
            show(api.get(self.path(name)), printer, as_json=as_json)

        self._add(verb, show_one, help_text)

    def add_switch(self, verb: str, help_text: str) -> None:
        """Add the command `pause` or `resume`."""

        def switch(api: Api, names: Annotated[list[str], self.name], as_json: JsonOption = False) -> None:
            for_each(names, lambda name: api.post(f"{self.path(name)}/{verb}"), self.changed, as_json=as_json)

        self._add(verb, switch, help_text)

    def add_changes(self, verb: str, help_text: str) -> None:
        """Add the command that lists the changes of one."""

        def list_changes(
            api: Api,
            name: Annotated[str, self.name],
            limit: Annotated[int, limit_of("changes", 100_000)] = 50,
            as_json: JsonOption = False,
        ) -> None:
            path = f"{self.path(name)}/changes"
            listing = Listing(path=path, empty="No changes recorded", columns=_CHANGES, has_cursor=False)
            listing.print_page(api, limit=limit, as_json=as_json)

        self._add(verb, list_changes, help_text)

    def add_queue(self, help_text: str, queue: Queue) -> None:
        """Add the command that lists the holders and what waits."""

        def list_queue(
            api: Api,
            name: Annotated[str, self.name],
            *,
            limit: QueueLimitOption = 50,
            cursor: CursorOption = None,
            as_json: JsonOption = False,
        ) -> None:
            found = api.get(f"{self.path(name)}/queue", {"limit": limit, "cursor": cursor})
            show(found, queue.print, as_json=as_json)

        self._add("queue", list_queue, help_text)

    def change(self, api: Api, name: str, fields: Mapping[str, object], *, as_json: bool) -> None:
        """Change these fields; create what is missing, and say so."""
        body = encode(fields)

        def change(name: str) -> Json:
            try:
                return api.patch(self.path(name), body)
            except ApiRefused as refusal:
                if refusal.code != Code.NOT_FOUND:
                    raise
            created = api.put(self.path(name), body)
            warn(f"{name}: created; there was no {self.noun} of this name")
            return created

        for_each([name], change, self.changed, as_json=as_json)

    def changed(self, name: str, definition: Json) -> str:
        """Return what a change prints, after the warnings of the API."""
        for warning in definition.get("warnings", ()):
            warn(warning)
        return f"{name}: {self.state(definition)}, {'paused' if definition['paused'] else 'not paused'}"

    def _add(self, verb: str, command: Callable[..., None], help_text: str) -> None:
        command.__doc__ = help_text
        self.app.command(verb)(with_api(command))


def paused_cell(definition: Json) -> str:
    """Return the cell of the column PAUSED."""
    return "paused" if definition["paused"] else ""


def dates(definition: Json) -> Iterator[tuple[str, object]]:
    """Yield when a definition was created and last changed."""
    yield "created_at", instant(definition["created_at"])
    yield "updated_at", instant(definition["updated_at"])
