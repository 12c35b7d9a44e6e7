"""The source neither runs strings as code nor unpickles data."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("common", "executor", "worker", "client", "stress", "localservers", "migrations")
MODULES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
FORBIDDEN_MODULES = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"})
FORBIDDEN_CALLS = frozenset(
    {
        "eval", "exec", "compile", "os.system", "os.popen", "subprocess.getoutput", "tempfile.mktemp",
        "subprocess.getstatusoutput", "asyncio.create_subprocess_shell", "yaml.unsafe_load", "yaml.full_load",
    }
)  # fmt: skip
FORBIDDEN_NAMES = frozenset({"yaml.Loader", "yaml.UnsafeLoader", "yaml.FullLoader", "yaml.CLoader"})


def faults(text: str) -> Iterator[str]:
    """Say what is wrong, and in which line."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
            case ast.ImportFrom(module=str(module)):
                found = [module] if module.split(".")[0] in FORBIDDEN_MODULES else []
            case ast.Call(func=func, keywords=keywords):
                found = [ast.unparse(func)] if ast.unparse(func) in FORBIDDEN_CALLS else []
                found += [f"{k.arg}={ast.unparse(k.value)}" for k in keywords if is_dangerous(k)]
            case ast.Attribute():
                found = [ast.unparse(node)] if ast.unparse(node) in FORBIDDEN_NAMES else []
            case _:
                found = []
        yield from (f"line {getattr(node, 'lineno', 0)}: {each}" for each in found)


def is_dangerous(keyword: ast.keyword) -> bool:
    """Whether this argument has a shell run something, or a server not be checked."""
    value = ast.unparse(keyword.value)
    return (keyword.arg == "shell" and value != "False") or (keyword.arg == "verify" and value == "False")


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_unpickled_nothing_runs_a_string_and_every_server_is_checked(package: str) -> None:
    assert len(MODULES) > 200
    found = {
        str(module.relative_to(ROOT)): list(faults(module.read_text(encoding="utf-8")))
        for module in MODULES
        if module.is_relative_to(ROOT / package)
    }
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import multiprocessing, marshal",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=flag)",
        "os.system('x')",
        "eval(x)",
        "httpx.get(u, verify=False)",
        "yaml.load(x, Loader=yaml.Loader)",
    ],
)
def test_a_fault_is_found(text: str) -> None:
    assert len(list(faults(text))) == 1
