"""Writes the reference of the Python packages from signatures and docstrings, as they are in the source."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import turnstile
from turnstile import client, testing

_PAGE: Final = """# Python

What a package exports, with its signature: where a function has several, each of them.
"""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_DECORATORS: Final = {"property", "cached_property", "functools.cached_property", "classmethod"}

_OF_ACTIONS: Final = (
    *("action", "command_action", "http_action", "use", "rate", "Action", "Context"),
    *("on_start", "on_stop", "lifespan", "PermanentError", "TemporaryError"),
)
_OF_CLIENTS: Final = (
    *("AsyncClient", "Client", "AsyncHandle", "Handle", "Request", "submit_in", "submit_in_async"),
    *("use_client", "current_client", "Submitted", "Completion", "StatusEvent", "Execution", "ActionRequest"),
    *("TurnstileError", "Rejected", "ExecutionFailed", "InvalidResult", "InvalidSetting", "Unavailable"),
    "NotReceived",
)
_OF_TESTS: Final = (
    *("run", "run_async", "started", "started_async", "Ran", "RunOptions", "FakeClient"),
    *("installation", "Installation"),
)


def python_page() -> str:
    """Return every public name for actions, for submitting and for tests."""
    parts = [_PAGE]
    for title, package, names in (
        ("For actions: `turnstile`", turnstile, _OF_ACTIONS),
        ("For submitting: `turnstile.client`", client, _OF_CLIENTS),
        ("For tests: `turnstile.testing`", testing, _OF_TESTS),
    ):
        parts += [f"\n## {title}\n", f"```text\n{inspect.cleandoc(package.__doc__ or '')}\n```\n"]
        for name in names:
            stub = "\n".join(_stub_of(inspect.unwrap(getattr(package, name))))
            parts.append(f"### {name}\n\n```python\n{stub}\n```\n")
    return "\n".join(parts)


def _stub_of(subject: Any) -> Iterator[str]:
    """Yield the lines of a function or a class: signatures, fields and docstrings."""
    body, name = _body_of(inspect.getsourcefile(subject) or ""), subject.__name__
    if not inspect.isclass(subject):
        yield from _function(body, name, subject.__doc__)
        return
    (of_class,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    bases = ", ".join(map(ast.unparse, of_class.bases))
    yield f"class {name}({bases}):" if bases else f"class {name}:"
    yield from _docstring(subject.__doc__)
    for node in of_class.body:
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            yield _indented(ast.unparse(node))
    for member in dict.fromkeys(each.name for each in of_class.body if isinstance(each, _Function)):
        found = inspect.getattr_static(subject, member)
        if not member.startswith("_"):
            yield ""
            yield from map(_indented, _function(of_class.body, member, inspect.getdoc(found)))
        elif member == "__init__" and found.__doc__:
            yield ""
            yield from map(_indented, _function(of_class.body, member, found.__doc__))


@cache
def _body_of(file: str) -> Sequence[ast.stmt]:
    module = ast.parse(Path(file).read_text(encoding="utf-8"))
    _Unquoted().visit(module)
    return module.body


class _Unquoted(ast.NodeTransformer):
    """Writes annotations that are strings as what they say."""

    def visit(self, node: ast.AST) -> Any:
        for name in ("annotation", "returns"):
            given = getattr(node, name, None)
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                setattr(node, name, ast.parse(given.value, mode="eval").body)
        return self.generic_visit(node)


def _function(body: Sequence[ast.stmt], name: str, docstring: str | None) -> Iterator[str]:
    """Yield a function with its docstring: its overloads, where it has some."""
    found = [node for node in body if isinstance(node, _Function) and node.name == name]
    overloads = [node for node in found if "overload" in map(ast.unparse, node.decorator_list)]
    for node in overloads or found[-1:]:
        for decorator in _DECORATORS & set(map(ast.unparse, node.decorator_list)):
            yield f"@{decorator}"
        kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
        yield f"{kind} {name}({ast.unparse(node.args)}){returns}:"
    yield from _docstring(docstring)


def _docstring(text: str | None) -> Iterator[str]:
    lines = inspect.cleandoc(text or "").splitlines()
    yield _indented(f'"""{lines[0]}' + ('"""' if len(lines) == 1 else ""))
    if len(lines) > 1:
        yield from map(_indented, lines[1:])
        yield _indented('"""')


def _indented(line: str) -> str:
    return f"    {line}" if line else ""
