"""Command groups that import a command when it is called: `--help` and each command load nothing else.

In: a table of command names, import targets and summaries. Out: a group that lists the summaries.
"""

from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_command

from turnstile.common import needs_extra
from turnstile.common.cli import CommandGroup, bad_input, command_line


class LazyCommand(NamedTuple):
    """Where a command is defined, and its summary: the first sentence of its help."""

    target: str
    """`package.module:attribute`: a function or a `Typer` application."""
    summary: str
    extra: str = ""
    """The extra that installs the packages of the module; empty: those of its group are enough."""


class _Placeholder(TyperCommand):
    """Represents a command in lists of commands and in completions."""

    def __init__(self, name: str, lazy: LazyCommand) -> None:
        super().__init__(name, help=lazy.summary)
        self._lazy = lazy
        self.extra = lazy.extra

    def load(self) -> Any:
        """Import the command."""
        module, _, attribute = self._lazy.target.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            single = command_line(self._lazy.summary)
            single.command(self.name)(found)
            found = single
        return get_command(found)


class LazyCommandGroup(CommandGroup):
    """A group of `lazy_commands`; the help lists them in this order."""

    lazy_commands: ClassVar[dict[str, LazyCommand]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name, lazy in self.lazy_commands.items():
            self.add_command(_Placeholder(name, lazy))

    def loaded(self, ctx: Any, command: Any) -> Any:
        """Import the command that is called; raises CommandFailed where its packages are missing."""
        if not isinstance(command, _Placeholder):
            return command
        try:
            return command.load()
        except ModuleNotFoundError as error:
            # A shell that completes a command line shows no errors.
            if ctx.resilient_parsing:
                return command
            if not command.extra:
                raise
            sentence = needs_extra(f"`{ctx.command_path} {command.name}`", command.extra)
            raise bad_input(f"{sentence} ({error.name} is missing)") from None
