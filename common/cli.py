"""What the command lines share: options made from a settings model, and how a command fails.

In: a model whose fields are settings. Out: one option for each, with its environment variable, default and
description, so that `--help` lists every `TURNSTILE_*`. A secret has no option: every user of a machine can
read the arguments of its processes. A command that cannot continue raises `CommandFailed`: the user sees its
message and the exit code, never a traceback.
"""

import errno
import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import typer
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

from turnstile.common.domain.durations import format_duration
from turnstile.common.domain.errors import TurnstileError
from turnstile.common.exit_codes import ExitCode
from turnstile.common.known_settings import unknown_settings
from turnstile.common.nearest import nearest
from turnstile.common.process_one import start_below_process_one
from turnstile.common.redaction import escaped, escaped_json
from turnstile.common.version import installed_version

ENVIRONMENT_ONLY: Final = "environment only"
"""Metadata of a field that holds a secret: `Annotated[SecretStr, ENVIRONMENT_ONLY]`."""
_WITH_PASSWORD: Final = re.compile(r"//[^/@]*:.+@|password=", re.DOTALL)

_SERVICE: Final = "serve"
_NEGATIVE: Final = re.compile(r"-[0-9]")
_OUTPUT_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

Subject = TypeVar("Subject")
Rest = ParamSpec("Rest")


class CommandFailed(TurnstileError):
    """The command ends here; the message explains what is wrong, where, and what was expected."""

    def __init__(self, message: str, *, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def bad_input(message: str) -> CommandFailed:
    """Return the error for wrong usage or a wrong setting."""
    return CommandFailed(message, exit_code=ExitCode.USAGE)


class CommandGroup(TyperGroup):
    """A group of commands that turns `CommandFailed` into its message and its exit code.

    The error for an unknown option names the nearest one, or what a negative number should have been. Before
    a command starts, a line on stderr names each variable `TURNSTILE_*` that nothing reads.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that is called."""
        name, command, rest = super().resolve_command(ctx, args)
        command = self.loaded(ctx, command)
        # A shell that completes a command line shows nothing; a service logs these lines itself.
        if not (ctx.resilient_parsing or isinstance(command, TyperGroup) or name == _SERVICE):
            for unknown in unknown_settings(os.environ):
                typer.echo(f"warning: {unknown.sentence}", err=True)
        return name, command, rest

    def loaded(self, ctx: Any, command: Any) -> Any:
        """Return the command itself, where the group has a placeholder of it."""
        del ctx
        return command

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Read the arguments, and print the help where it is asked for."""
        with _ended_by_a_closed_pipe():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is called."""
        words = list(ctx.args)
        try:
            with _ended_by_a_closed_pipe():
                return super().invoke(ctx)
        except typer.TyperException as error:
            # Only the error for an unknown option has possibilities; groups above this one pass it on.
            inside = getattr(error, "ctx", None)
            if hasattr(error, "possibilities") and inside is not None and inside.parent is ctx:
                _explain_unknown_option(error, words)
            raise
        except CommandFailed as failed:
            # The message may quote text from outside.
            typer.echo(escaped(failed.message, keep="\n\t"), err=True)
            raise typer.Exit(failed.exit_code) from None


def command_line(
    summary: str, *, group: type[CommandGroup] = CommandGroup, completes: bool = False
) -> typer.Typer:
    """Return an empty command line, or a group inside one; `completes` adds shell completion."""
    return typer.Typer(
        cls=group,
        help=summary,
        no_args_is_help=True,
        add_completion=completes,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"turnstile {installed_version()}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
]


def run_command_line(app: typer.Typer, *, name: str) -> None:
    """Run a program and exit; its output may be closed, full, or limited to an encoding."""
    start_below_process_one()
    # A closed stream is None: discard its output.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A character that the encoding lacks is written as its escape.
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name=name)
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        typer.echo(f"{error.filename or 'stdout'}: {error.strerror}", err=True)
        _discard_output()
        sys.exit(ExitCode.FAILED)


def print_json(value: object, *, on_one_line: bool = False) -> None:
    """Print `value` as JSON; indented only on a terminal."""
    indent = 2 if sys.stdout.isatty() and not on_one_line else None
    # stdout would replace characters that it cannot encode by escapes that are not JSON.
    text = json.dumps(value, ensure_ascii=not _is_utf8(), indent=indent, default=_as_json)
    typer.echo(escaped_json(text))


def _as_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} cannot be printed as JSON")
    return {each.name: getattr(value, each.name) for each in dataclass_fields(value)}


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("_", "-") in ("utf-8", "utf8")


@contextmanager
def _ended_by_a_closed_pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        _discard_output()
        sys.exit(ExitCode.PIPE_CLOSED)


def _discard_output() -> None:
    """Discard what is still in the buffer, which Python would try to write at exit, with a second error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def with_options(
    model: type[BaseModel], read: Callable[..., Subject], *, only: Collection[str] | None = None
) -> Callable[[Callable[Concatenate[Subject, Rest], None]], Callable[..., None]]:
    """Add an option to a command for each field of `model`, or those in `only`, and pass it `read(**given)`.

    A setting given neither as an option nor in the environment is None. `read` reports a wrong setting by
    name. The command's own parameters come first in its help.
    """
    fields = {name: f for name, f in model.model_fields.items() if only is None or name in only}
    secrets = {name: field for name, field in fields.items() if ENVIRONMENT_ONLY in field.metadata}
    options = [_option(name, field) for name, field in fields.items() if name not in secrets]

    def decorate(command: Callable[Concatenate[Subject, Rest], None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        _, *own = signature.parameters.values()

        @functools.wraps(command)
        def with_subject(**given: Any) -> None:
            settings = {option.name: given.pop(option.name) for option in options}
            refuse_passwords({n: v for n, v in settings.items() if fields[n].annotation is SecretStr})
            settings |= {name: os.environ.get(environment_name(name)) or None for name in secrets}
            command(read(**settings), **given)  # type: ignore[call-arg]

        with_subject.__doc__ = "\n\n".join(
            [inspect.getdoc(command) or "", *map(_line, secrets, secrets.values())]
        )
        parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *options]
        with_subject.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return with_subject

    return decorate


def environment_name(field_name: str) -> str:
    """Return the name of a setting in the environment."""
    return f"TURNSTILE_{field_name.upper()}"


def refuse_passwords(given: Mapping[str, object]) -> None:
    """Raise CommandFailed for a URL with a password that is an argument and not from the environment."""
    for name, value in given.items():
        variable = environment_name(name)
        is_argument = isinstance(value, str) and value != os.environ.get(variable)
        if is_argument and _WITH_PASSWORD.search(str(value)):
            raise bad_input(
                f"--{name.replace('_', '-')}: every user of this machine can read a password among the "
                f"arguments; set {variable} in the environment instead"
            )


def _explain_unknown_option(error: Any, words: Sequence[str]) -> None:
    """Add the nearest option to the error; where it is a negative number, raise the error of its argument."""
    name, command = error.option_name, error.ctx.command
    at = next((index for index, word in enumerate(words) if word.startswith(name)), None)
    if _NEGATIVE.match(name) and at is not None:
        as_argument = [*words[:at], "--", *words[at:]]
        command.make_context(error.ctx.info_name, as_argument, parent=error.ctx.parent)
    options = {option for each in command.params for option in each.opts if option.startswith("--")}
    begun = sorted(option for option in options if name.startswith("--") and option.startswith(name))
    found = begun[0] if len(begun) == 1 else nearest(name, options)
    error.possibilities = None
    if found is not None:
        error.message = f"No such option: {escaped(name)}. Did you mean {found}?"


def _line(name: str, field: FieldInfo) -> str:
    variable = environment_name(name)
    return f"{field.description} Secret: set it with the environment variable {variable}."


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    flag, is_switch = f"--{name.replace('_', '-')}", field.annotation is bool
    sentence = field.description or f"{name.replace('_', ' ').capitalize()}."
    default = _shown(field.get_default(call_default_factory=True, validated_data={}))
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if is_switch else flag,
        envvar=environment_name(name),
        help=f"{sentence} [default: {default}]" if default else sentence,
        metavar=None if is_switch else _metavar(field),
        show_default=False,
    )
    kind = bool if is_switch else str
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _shown(default: object) -> str:
    match default:
        case None:
            return ""
        case SecretStr():
            return default.get_secret_value()
        case bool():
            return "yes" if default else "no"
        case float():
            return format_duration(default)
        case list():
            return ",".join(map(str, default))
        case _:
            return str(default)


_METAVARS: Final[Mapping[object, str]] = {
    int: "NUMBER",
    float: "DURATION",
    SecretStr: "TEXT",
    list: "A,B,...",
}


def _metavar(field: FieldInfo) -> str:
    kind: Any = field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return _METAVARS.get(get_origin(kind) or kind, "TEXT")
