"""States and transitions, from the one table that everything else is made from."""

from generate.tables import table
from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import TRANSITIONS, Status, is_terminal

_HEAD = "# States and codes\n\n## States\n"


def page() -> str:
    """Return the page."""
    states = table(
        ("status", "an end", "left by"),
        [
            (f"`{status}`", "yes" if is_terminal(status) else "", ", ".join(_leaving(status)))
            for status in Status
        ],
    )
    moves = table(
        ("move", "from", "to"),
        [
            (move.name, ", ".join(f"`{source}`" for source in sorted(move.sources)), f"`{move.target}`")
            for move in TRANSITIONS
        ],
    )
    codes = table(("code",), [(f"`{code}`",) for code in Code])
    return "\n".join(
        [
            _HEAD,
            states,
            "\n## Transitions\n",
            moves,
            "\n## Codes of refusals\n",
            "The same in `execution.rejected`, in problems and in the dead letters' `x-error-code`.\n",
            codes,
        ]
    )


def _leaving(status: Status) -> list[str]:
    return [move.name for move in TRANSITIONS if status in move.sources]
