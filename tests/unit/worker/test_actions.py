"""Declaring actions in code, and loading them."""

from pathlib import Path

import pytest

from tests.unit.worker.conftest import MakeModule
from turnstile.worker import command_action, http_action, rate, use
from turnstile.worker.actions import ActionsNotFound, action_from_entrypoint, load_actions
from turnstile.worker.parameters import ActionDeclarationError

HEAD = "from turnstile.worker import Context, action, command_action, http_action, rate, use\n"


def refs(*targets: str) -> list[str]:
    return [found.definition.ref for found in load_actions(*targets)]


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        (
            "@action('a', max_concurent=3)",
            "max_concurent: unknown field; did you mean max_concurrent?; known: callback_url, ",
        ),
        ("@action('a', max_concurrent=-1)", "max_concurrent: expected 0 or more"),
        ("@action('a', timeout='soon')", "timeout: not a duration: 'soon'; expected for example"),
        ("@action('a b')", "ref: 'a b' cannot name an action"),
        (
            "@action('a', retry={'times': 2})",
            "retry.times: unknown field; known fields are max_attempts, delay, ",
        ),
        ("@action('a', entrypoint='x:y')", "entrypoint: unknown field"),
        ("@action('a', uses=[use('cad', units=0)])", "uses.0.units: expected 1 or more"),
        ("@action('a', uses=['c d'])", "uses.0.resource: 'c d' cannot name a resource"),
        ("@action('a', rate=rate(1, '2d'))", "rate.per: 2d is not between 1ms and 1d"),
        ("@action('a', max_concurrent_total=3)", "max_concurrent_total: an action without concurrency keys"),
    ],
)
def test_an_invalid_field_is_refused_at_import_with_its_name_and_what_is_expected(
    make_module: MakeModule, declaration: str, words: str
) -> None:
    module = make_module(f"{HEAD}{declaration}\ndef a(): pass\n")
    with pytest.raises(ActionDeclarationError) as refused:
        load_actions(module)
    assert words in str(refused.value)
    assert "action('a" in str(refused.value)


def test_commands_and_urls_are_actions_without_a_function(make_module: MakeModule) -> None:
    module = make_module(
        f"{HEAD}command_action('count', argv=['wc', '-w'], max_concurrent=2)\n"
        "hook = http_action('hook', url='https://example.org/hook')\n"
    )
    count, hook = load_actions(module)
    assert (count.definition.runner, count.definition.entrypoint) == ("command", ["wc", "-w"])
    assert (hook.definition.runner, hook.definition.entrypoint) == ("http", "https://example.org/hook")
    assert refs(f"{module}:hook") == ["hook"]
    with pytest.raises(ActionDeclarationError, match="argv as a list"):
        command_action("count", argv=[])
    with pytest.raises(ActionDeclarationError, match="needs a URL"):
        http_action("hook", url="example.org")


def test_code_declares_what_an_action_shares_with_others() -> None:
    declared = command_action(
        "render",
        argv=["render"],
        concurrency_key="/customer",
        max_concurrent_total=20,
        order="fair",
        uses=["partner-api", use("autocad", units=2, weight=3)],
        rate=rate(10, "1s"),
        priority_min=2,
        runs=False,
    ).registered.definition
    assert [(each.resource, each.units, each.weight) for each in declared.uses] == [
        ("autocad", 2, 3),
        ("partner-api", 1, 1),
    ]
    assert declared.rate is not None
    assert (declared.rate.starts, declared.rate.per) == (10, 1.0)
    assert (declared.max_concurrent_total, declared.order, declared.priority_min) == (20, "fair", 2)
    assert not declared.runs


def test_one_name_or_a_list_can_be_loaded(make_module: MakeModule) -> None:
    module = make_module(
        f"{HEAD}@action('a')\ndef a(): pass\n@action('b')\ndef b(): pass\n@action('c')\nasync def c(): pass\n"
        "some = [c, a]\n"
    )
    assert [found.runs_in_loop for found in load_actions(module)] == [False, False, True]
    assert refs(module) == ["a", "b", "c"]
    assert refs(f"{module}:b") == ["b"]
    assert refs(f"{module}:some") == ["c", "a"]
    assert refs(f"{module}:b", module) == ["b", "a", "c"]


def test_a_module_has_the_actions_that_it_imports(make_module: MakeModule) -> None:
    first = make_module(f"{HEAD}@action('a')\ndef a(): pass\n@action('hidden')\ndef hidden(): pass\n")
    second = make_module(f"from {first} import a\n")
    assert refs(second) == ["a"]


@pytest.mark.usefixtures("make_module")
def test_a_package_has_the_actions_of_the_submodules_it_imports() -> None:
    package = Path("package_of_actions")
    package.mkdir()
    (package / "__init__.py").write_text(f"import {package}.inner\n")
    (package / "inner.py").write_text(f"{HEAD}@action('inner')\ndef inner(): pass\n")
    (package / "other.py").write_text(f"{HEAD}@action('other')\ndef other(): pass\n")
    assert refs(str(package)) == ["inner"]


def test_two_actions_with_the_same_ref_are_refused(make_module: MakeModule) -> None:
    first = make_module(f"{HEAD}@action('a')\ndef a(): pass\n")
    second = make_module(f"{HEAD}command_action('a', argv=['true'])\n")
    both = make_module(f"{HEAD}@action('a')\ndef a(): pass\n@action('a')\ndef b(): pass\n")
    assert refs(first, first) == ["a"]
    with pytest.raises(ActionDeclarationError, match=f"two actions are named 'a', in {first} and {second}"):
        load_actions(first, second)
    with pytest.raises(ActionDeclarationError, match="two actions are named 'a'"):
        load_actions(both)


def test_a_target_that_cannot_be_loaded_is_explained_in_one_line(make_module: MakeModule) -> None:
    module = make_module("nothing = 1\n")
    needy = make_module("import no_such_library\n")
    for target, words in (
        ("no_such_module", "No module named 'no_such_module'"),
        (needy, "No module named 'no_such_library'"),
        (f"{module}:missing", "has no 'missing'"),
        (f"{module}:nothing", "declares no action"),
        (module, "declares no action"),
        ("", "not the name of a module"),
        ("./actions.py", "not the name of a module"),
    ):
        with pytest.raises(ActionsNotFound) as missing:
            load_actions(target)
        assert words in str(missing.value)
        assert "\n" not in str(missing.value)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("def a(x, /): pass", "cannot be passed by keyword"),
        ("def a(*x): pass", "cannot be passed by keyword"),
        ("def a(): yield 1", "an action returns one value"),
        ("async def a(): yield 1", "an action returns one value"),
        ("def a(x: 'NoSuchName'): pass", "NoSuchName"),
        ("class C: pass\n@action('b')\ndef a(x: C): pass", "cannot be read from JSON"),
    ],
)
def test_a_function_that_cannot_be_called_with_json_is_refused_when_it_is_loaded(
    make_module: MakeModule, function: str, words: str
) -> None:
    lines = function if "@action" in function else f"@action('a')\n{function}"
    module = make_module(f"{HEAD}{lines}\n")
    with pytest.raises(ActionDeclarationError, match=words):
        load_actions(module)


def test_an_entrypoint_is_any_function(make_module: MakeModule) -> None:
    module = make_module("def plain(a: int): return a\nvalue = 1\n")
    found = action_from_entrypoint("some.ref", f"{module}:plain")
    assert found.definition.ref == "some.ref"
    assert found.function is not None
    assert found.function(a=1) == 1
    for missing in (f"{module}:nothing", f"{module}:value", module):
        with pytest.raises(ActionsNotFound, match="has no function"):
            action_from_entrypoint("some.ref", missing)
