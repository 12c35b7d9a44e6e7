"""Commands that are imported when they are called: `executor --help`, and each command, load nothing else.

In: a table of names, places and summaries. Out: a group that shows the summaries, and loads one command.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand
from typer.main import get_command

from turnstile.common.command_line import CommandGroup, command_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a command is, and what it says of itself in one line."""

    module: str
    attribute: str
    summary: str


class _Deferred(TyperCommand):
    """Stands for a command in the list of commands and in completions."""

    def __init__(self, name: str, place: Place) -> None:
        super().__init__(name, help=place.summary)
        self._place = place

    def load(self) -> Any:
        """Return the command itself."""
        found = getattr(import_module(self._place.module), self._place.attribute)
        if not isinstance(found, typer.Typer):
            alone = command_line(self._place.summary)
            alone.command(self.name)(found)
            found = alone
        return get_command(found)


class CommandsOnDemand(CommandGroup):
    """A group whose commands stand in `places`, in the order of the help."""

    places: ClassVar[dict[str, Place]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name, place in self.places.items():
            self.add_command(_Deferred(name, place))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that is called, and load it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, _Deferred) else command, rest
