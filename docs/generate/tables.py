"""Markdown tables of what pydantic models say about their fields."""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells may hold anything but line breaks."""
    lines = [_line(headings), _line(["---"] * len(headings)), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def default_of(field: FieldInfo) -> str:
    """Return the default of a field as a user would write it."""
    if field.default_factory is not None or field.default is PydanticUndefined:
        return "" if field.default_factory is not None else "*required*"
    match field.default:
        case None:
            return "none"
        case SecretStr() as secret:
            return f"`{secret.get_secret_value()}`" if secret.get_secret_value() else "none"
        case bool() as flag:
            return f"`{str(flag).lower()}`"
        case [] | ():
            return "none"
        case value:
            return f"`{value}`"


def fields_table(model: type[BaseModel]) -> str:
    """Return one line per field of a model: its name, its default, what it means."""
    rows = [
        (f"`{key}`", default_of(field), field.description or "") for key, field in model.model_fields.items()
    ]
    return table(("field", "default", "meaning"), rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
