"""Shows a state that changes: live at the bottom of a terminal, a line every two seconds elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

_LINE_SECONDS: Final = 2.0


class Display:
    """The display of one console; `live` is None without a terminal."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._next_seconds = 0.0

    def show(
        self, seconds: float, line: str, draw: Callable[[], RenderableType], *, at_once: bool = False
    ) -> None:
        """Show the state at `seconds`: what `draw` returns, or a line if one is due or `at_once`."""
        if self._live is not None:
            self._live.update(draw(), refresh=True)
        elif at_once or seconds >= self._next_seconds:
            self._next_seconds = seconds + _LINE_SECONDS
            self.print(Text(f"{seconds:7.1f} s  {line}"))

    def note(self, text: Text) -> None:
        """Show a text in place of the state, on a terminal only."""
        if self._live is not None:
            self._live.update(text, refresh=True)

    def print(self, text: Text) -> None:
        """Print a line permanently."""
        self.note(Text())
        self._console.print(text, soft_wrap=True, highlight=False)


@contextmanager
def display_on(console: Console, *, transient: bool) -> Iterator[Display]:
    """Yield a display; `transient`: the last state disappears from a terminal at the end."""
    if not console.is_terminal:
        yield Display(console, None)
        return
    with Live(console=console, auto_refresh=False, transient=transient) as live:
        yield Display(console, live)
