"""The replay and purge of a selection: of dead letters, and of webhooks.

A selection is the body of a request: the ids that were named, or everything of a kind. Each call is bounded
by the API; what is not named covers what exists when the command starts, or what the user agreed to.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer

from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.arguments import encode
from turnstile.executor.cli.client import Api
from turnstile.executor.cli.confirmation import confirm
from turnstile.executor.cli.documents import Handled, Planned
from turnstile.executor.cli.output import counted, print_json, print_line, warn

_IDS_MAX: Final = 1000


def by_ids(ids: Sequence[int] | Sequence[str]) -> list[dict[str, Any]]:
    """Return the selections of these ids: the API takes a thousand in one call."""
    return [{"ids": ids[start : start + _IDS_MAX]} for start in range(0, len(ids), _IDS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A replay or a purge: its route, and its words."""

    path: str
    verb: str
    done: str
    noun: str
    missing: str
    batch_max: int
    named_at_once: bool = False
    """A call handles all that it names, and the `left` of its response counts others."""

    def run(
        self,
        api: Api,
        selections: Sequence[Mapping[str, Any]],
        *,
        question: str,
        destroys: str | None,
        dry_run: bool,
        yes: bool,
        as_json: bool,
    ) -> None:
        """Change these selections after agreement; `destroys` is None where no agreement is needed.

        `question` has the place {} for what would be changed.
        """
        if dry_run:
            self._print_planned(self._planned(api, selections), as_json=as_json)
            return
        confirmed: int | None = None

        def asked() -> str | None:
            nonlocal confirmed
            confirmed = self._planned(api, selections)["left"]
            return question.format(counted(confirmed, self.noun)) if confirmed else None

        if destroys is not None:
            confirm(asked, yes=yes, destroys=destroys)
        total = _summed(self._handled(api, each, confirmed) for each in selections)
        self._print_handled(total, as_json=as_json)

    def _planned(self, api: Api, selections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the responses of dry runs: `left` is how many would be changed."""
        return _summed(api.post(self.path, encode({**each, "dry_run": True})) for each in selections)

    def _handled(self, api: Api, selection: Mapping[str, Any], confirmed: int | None) -> Mapping[str, Any]:
        if "ids" not in selection:
            return repeat_until_done(api, self.path, selection, batch_max=self.batch_max, confirmed=confirmed)
        if self.named_at_once:
            return {**api.post(self.path, encode(selection)), "left": 0}
        # What is named stays named: what is missing of it is reported.
        return repeat_until_done(api, self.path, selection, batch_max=self.batch_max)

    def _print_planned(self, planned: Mapping[str, Any], *, as_json: bool) -> None:
        """Print the result of a dry run; exit code 1 if anything that was named would remain."""
        refused, missing = planned["refused"], planned["missing"]
        if as_json:
            print_json(Planned(matched=planned["left"], refused=refused, missing=missing))
        else:
            print_line(f"Would {self.verb} {counted(planned['left'], self.noun)}")
            self._warn(planned, "would not be replayed")
        if refused or missing:
            raise typer.Exit(ExitCode.FAILED)

    def _print_handled(self, total: Mapping[str, Any], *, as_json: bool) -> None:
        """Print the result of a change; exit code 1 if anything that was named remains."""
        if as_json:
            print_json(Handled(**total))
        else:
            print_line(f"{self.done} {counted(total['done'], self.noun)}")
            self._warn(total, "not replayed")
            if total["left"]:
                warn(f"{total['left']} left; repeat the command")
        if total["refused"] or total["missing"] or total["left"]:
            raise typer.Exit(ExitCode.FAILED)

    def _warn(self, total: Mapping[str, Any], is_refused: str) -> None:
        for refused in total["refused"]:
            warn(f"{refused['id']}: {is_refused}: {refused['reason']}")
        for name in total["missing"]:
            warn(f"{name}: not_found: {self.missing}")


def repeat_until_done(
    api: Api, path: str, selection: Mapping[str, Any], *, batch_max: int, confirmed: int | None = None
) -> dict[str, Any]:
    """POST `selection` until everything that it matched at first is handled; later matches are left alone.

    At most `confirmed`, the oldest first; None: as many as the first call matches. What is refused stays at
    the head of the list, so each call selects it again.
    """
    if confirmed == 0:
        return _summed(())
    bound = {} if confirmed is None else {"limit": min(confirmed, batch_max)}
    page = api.post(path, encode({**selection, **bound}))
    done, refused = page["done"], {each["id"]: each for each in page["refused"]}
    at_first = done + len(refused) + page["left"]
    if confirmed is not None:
        at_first = min(at_first, confirmed)
    while page["left"] and page["done"] and done + len(refused) < at_first:
        page = api.post(path, encode({**selection, "limit": min(at_first - done, batch_max)}))
        done += page["done"]
        refused |= {each["id"]: each for each in page["refused"]}
    return {
        "done": done,
        "refused": list(refused.values()),
        "missing": page["missing"],
        "left": max(at_first - done - len(refused), 0),
    }


def _summed(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {"done": 0, "refused": [], "missing": [], "left": 0}
    for result in results:
        for name in total:
            total[name] += result[name]
    return total
