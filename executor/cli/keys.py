"""`executor actions keys ...`: limits and weights of single concurrency keys, over the HTTP API."""

from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from turnstile.common.cli import command_line
from turnstile.common.domain.errors import Code
from turnstile.common.fields import WEIGHT_MAX
from turnstile.executor.cli.arguments import RefArgument, bad_input, encode, limit_option, limit_or_none
from turnstile.executor.cli.client import Api, ApiRefused, Json, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption, confirm_named
from turnstile.executor.cli.output import Columns, JsonOption, for_each, show_plan
from turnstile.executor.cli.pagination import print_all
from turnstile.executor.cli.values import shown
from turnstile.executor.definitions import KeySettings, key_fields

_COLUMNS: Final[Columns] = {
    "KEY": "concurrency_key",
    "LIMIT": lambda key: shown("max_concurrent", key["max_concurrent"]) if key["has_limit"] else "",
    "WEIGHT": "weight",
}
_DESTROYS: Final = "a key without settings has the limit of the action at once"
_KEY = typer.Argument(metavar="KEY", help="Concurrency key, like 7.")

app = command_line("Give single concurrency keys their own limit and weight.")


@app.command("list")
@with_api
def list_keys(api: Api, ref: RefArgument, as_json: JsonOption = False) -> None:
    """List the concurrency keys of an action that have settings of their own."""
    print_all(
        api, f"/actions/{ref}/keys", _COLUMNS, empty="All keys have the limit of the action", as_json=as_json
    )


@app.command("set")
@with_api
def set_key(
    api: Api,
    ref: RefArgument,
    key: Annotated[str, _KEY],
    *,
    max_concurrent: Annotated[
        int | None,
        limit_option("Maximum concurrent executions of this key; 0: nothing starts; none: no limit."),
    ] = None,
    weight: Annotated[
        int | None,
        typer.Option(
            min=1, max=WEIGHT_MAX, metavar="NUMBER", help="Share of max_concurrent_total with 'order: fair'."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give a concurrency key its own limit or weight, with immediate effect.

    Options that are not given change nothing. Example: executor actions keys set reports.render 7
    --max-concurrent 5
    """
    given: dict[str, Any] = {} if weight is None else {"weight": weight}
    if max_concurrent is not None:
        given["max_concurrent"] = limit_or_none(max_concurrent)
    if not given:
        raise bad_input("give --max-concurrent, --weight, or both, like --max-concurrent 5")

    def change(name: str) -> Json:
        body = encode({**_stored_fields(api, ref, name), **given})
        return api.put(_path(ref, name), body)

    for_each([key], change, _state, as_json=as_json)


@app.command("delete")
@with_api
def delete_keys(
    api: Api,
    ref: RefArgument,
    keys: Annotated[list[str], _KEY],
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the settings of concurrency keys: they have the limit of the action again.

    A terminal prompts for confirmation; without one, --yes is needed.
    """
    if dry_run:
        show_plan(
            keys,
            lambda key: api.get(_path(ref, key)),
            lambda key, settings: f"Would delete the settings of {_state(key, settings)}",
            as_json=as_json,
        )
        return
    asks = f"Delete the settings of {ref} for the keys"
    confirm_named(lambda: keys, asks=asks, destroys=_DESTROYS, yes=yes)
    for_each(
        keys,
        lambda key: api.delete(_path(ref, key), {}),
        lambda key, _: f"Deleted the settings of {key}",
        as_json=as_json,
    )


def stored_settings(item: Json) -> KeySettings:
    """Return the settings of a key as the API lists them."""
    limit = {"max_concurrent": item["max_concurrent"]} if item["has_limit"] else {}
    return KeySettings.model_validate({**limit, "weight": item["weight"]})


def change_key(api: Api, ref: str, key: str, settings: KeySettings | None) -> Json:
    """Store the settings of a key; None: delete them."""
    if settings is None:
        return api.delete(_path(ref, key), {})
    return api.put(_path(ref, key), encode(key_fields(settings)))


def _stored_fields(api: Api, ref: str, key: str) -> dict[str, Any]:
    try:
        return key_fields(stored_settings(api.get(_path(ref, key))))
    except ApiRefused as refusal:
        if refusal.code != Code.NOT_FOUND:
            raise
        return {}


def _path(ref: str, key: str) -> str:
    # A client would resolve dots between slashes.
    escaped = quote(key, safe="", errors="surrogateescape").replace(".", "%2E")
    return f"/actions/{ref}/keys/{escaped}"


def _state(key: str, settings: Json) -> str:
    limit = shown("max_concurrent", settings["max_concurrent"])
    return f"{key}: limit {limit}, weight {settings['weight']}"
