"""`executor actions keys ...`: limits and weights of single concurrency keys, over the HTTP API."""

from typing import Annotated, Any, Final
from urllib.parse import quote

from turnstile.common.cli import bad_input, command_line
from turnstile.common.domain.errors import Code
from turnstile.common.fields import WEIGHT_MAX
from turnstile.executor.cli.arguments import LIMIT, RefArgument, argument, encode, given, option
from turnstile.executor.cli.client import Api, ApiRefused, Json, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption, change_named
from turnstile.executor.cli.output import JsonOption, Listing, for_each, shown
from turnstile.executor.definitions import KeySettings, key_fields

_KEY: Final = argument("KEY", "Concurrency key, like 7.")

app = command_line("Give single concurrency keys their own limit and weight.")


@app.command("list")
@with_api
def list_keys(api: Api, ref: RefArgument, as_json: JsonOption = False) -> None:
    """List the concurrency keys of an action that have settings of their own."""
    listing = Listing(
        path=f"/actions/{ref}/keys",
        empty="All keys have the limit of the action",
        columns={
            "KEY": "concurrency_key",
            "LIMIT": lambda key: shown("max_concurrent", key["max_concurrent"]) if key["has_limit"] else "",
            "WEIGHT": "weight",
        },
    )
    listing.print_all(api, as_json=as_json)


@app.command("set")
@with_api
def set_key(
    api: Api,
    ref: RefArgument,
    key: Annotated[str, _KEY],
    *,
    max_concurrent: Annotated[
        object, option(LIMIT, "Maximum concurrent executions of this key; 0: nothing starts; none: no limit.")
    ] = None,
    weight: Annotated[
        int | None,
        option("NUMBER", "Share of max_concurrent_total with 'order: fair'.", min=1, max=WEIGHT_MAX),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give a concurrency key its own limit or weight, with immediate effect.

    Options that are not given change nothing. Example: executor actions keys set reports.render 7
    --max-concurrent 5
    """
    fields = given(max_concurrent=max_concurrent, weight=weight)
    if not fields:
        raise bad_input("give --max-concurrent, --weight, or both, like --max-concurrent 5")

    def change(name: str) -> Json:
        return api.put(key_path(ref, name), encode({**stored_fields(api, ref, name), **fields}))

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
    change_named(
        keys,
        read=lambda key: Json({**api.get(key_path(ref, key)), "dry_run": True}),
        plan=lambda key, settings: f"Would delete the settings of {_state(key, settings)}",
        asks=f"Delete the settings of {ref} for the keys",
        destroys="a key without settings has the limit of the action at once",
        change=lambda key: api.delete(key_path(ref, key)),
        changed=lambda key, _: f"Deleted the settings of {key}",
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


def stored_settings(item: Json) -> KeySettings:
    """Return the settings of a key as the API lists them."""
    limit = {"max_concurrent": item["max_concurrent"]} if item["has_limit"] else {}
    return KeySettings.model_validate({**limit, "weight": item["weight"]})


def stored_fields(api: Api, ref: str, key: str) -> dict[str, Any]:
    """Return the fields of the settings of a key; without settings none."""
    try:
        return key_fields(stored_settings(api.get(key_path(ref, key))))
    except ApiRefused as refusal:
        if refusal.code != Code.NOT_FOUND:
            raise
        return {}


def key_path(ref: str, key: str) -> str:
    """Return the path of the settings of a key."""
    # A client would resolve dots between slashes.
    escaped = quote(key, safe="", errors="surrogateescape").replace(".", "%2E")
    return f"/actions/{ref}/keys/{escaped}"


def _state(key: str, settings: Json) -> str:
    limit = shown("max_concurrent", settings["max_concurrent"])
    return f"{key}: limit {limit}, weight {settings['weight']}"
