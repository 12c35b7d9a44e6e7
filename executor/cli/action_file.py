"""Reads `actions.yaml`: a list of definitions, or `actions:` with such a list.

In: a file. Out: definitions. All that is wrong with it is told at once, each with file, entry and field, and
then nothing of it is applied.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.requests import known_fields
from turnstile.executor.cli.arguments import bad_input, piped_in

_EXAMPLE: Final = "- {ref: reports.render, max_concurrent: 3}"


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice: YAML itself would keep the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key, str):
                continue
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_action_file(path: str) -> list[ActionDefinition]:
    """Return the definitions in a file, or on stdin where `path` is '-'; raises CommandFailed."""
    name = "stdin" if path == "-" else path
    found: dict[str, ActionDefinition] = {}
    problems: list[str] = []
    for number, entry in enumerate(_entries(name, _content(path)), start=1):
        ref = entry.get("ref") if isinstance(entry, dict) else None
        where = f"{name}: entry {number}" + (f" ({ref})" if isinstance(ref, str) else "")
        try:
            definition = ActionDefinition.model_validate(entry)
        except ValidationError as error:
            problems += (f"{where}: {sentence}" for sentence in _sentences(error))
            continue
        if found.setdefault(definition.ref, definition) is not definition:
            problems.append(f"{where}: ref: this action is defined twice; keep one of them")
    if problems:
        raise bad_input("\n".join(problems))
    return list(found.values())


def _content(path: str) -> bytes:
    try:
        return piped_in().read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise bad_input(f"{path}: {error.strerror}; expected a YAML file like: {_EXAMPLE}") from None


def _entries(name: str, content: bytes) -> list[Any]:
    try:
        value = yaml.load(content, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise bad_input(f"{name}: {place}{error.problem}; expected YAML like: {_EXAMPLE}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise bad_input(f"{name}: not YAML: {error}; expected YAML like: {_EXAMPLE}") from None
    except (TypeError, LookupError, AttributeError):
        # So the library says it.
        raise bad_input(
            f"{name}: a tag does not fit its value, as in '!!bool maybe'; expected YAML like: {_EXAMPLE}"
        ) from None
    if isinstance(value, dict) and value.keys() == {"actions"}:
        value = value["actions"]
    if not isinstance(value, list):
        raise bad_input(f"{name}: expected a list of actions, or 'actions:' with one, like: {_EXAMPLE}")
    return value


def _sentences(error: ValidationError) -> list[str]:
    sentences = []
    for problem in error.errors(include_url=False, include_input=False):
        field = ".".join(map(str, problem["loc"])) or "definition"
        if problem["type"] == "extra_forbidden":
            known = known_fields(ActionDefinition, problem["loc"])
            sentences.append(f"{field}: no such field; known are {known}")
        else:
            sentences.append(f"{field}: {problem['msg'].removeprefix('Value error, ')}")
    return sentences
