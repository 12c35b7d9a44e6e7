"""What users read about a rejected value: where, and what was expected, in plain words."""

from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core._pydantic_core import list_all_errors

from turnstile.common.invalid_values import explained, invalid_values, sentence


class Inner(BaseModel):
    units: Annotated[int, Field(ge=1, le=9)] = 1
    most: int = 9

    @model_validator(mode="after")
    def _units_fit(self) -> Self:
        if self.units > self.most:
            raise ValueError(f"units: expected {self.most} or less")
        return self


class Outer(BaseModel):
    inner: list[Inner] = []
    entrypoint: str | list[str] | None = None
    labels: dict[str, int] = {}
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    order: Literal["arrival", "fair"] = "fair"
    name: Annotated[str, Field(min_length=2, max_length=3)] = "ab"
    urgent: bool = False
    own: str = ""

    @field_validator("own")
    @classmethod
    def _own_words(cls, value: str) -> str:
        if value == "bad":
            raise ValueError("own: is taken; choose another name")
        return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"inner": [{"units": 0}]}, "inner.0.units: expected 1 or more"),
        ({"inner": [{"units": 10}]}, "inner.0.units: expected 9 or less"),
        ({"inner": [{"units": "few"}]}, "inner.0.units: expected a whole number"),
        ({"inner": [{"units": 1.5}]}, "inner.0.units: expected a whole number"),
        ({"inner": "many"}, "inner: expected a list"),
        ({"inner": [3]}, "inner.0: expected an object"),
        ({"share": 0}, "share: expected more than 0.0"),
        ({"share": 1}, "share: expected less than 1.0"),
        ({"order": "random"}, "order: expected 'arrival' or 'fair'"),
        ({"name": "a"}, "name: expected 2 characters or more"),
        ({"name": "abcd"}, "name: expected 3 characters or fewer"),
        ({"urgent": "soon"}, "urgent: expected true or false"),
        ({"inner": [{"units": 3, "most": 2}]}, "inner.0.units: expected 2 or less"),
        ({"own": "bad"}, "own: is taken; choose another name"),
        ({"entrypoint": {"command": []}}, "entrypoint: expected text or a list"),
        ({"entrypoint": ["ok", 3]}, "entrypoint.1: expected text"),
        # A key may be called like a type.
        ({"labels": {"str": "x"}}, "labels.str: expected a whole number"),
    ],
)
def test_a_rejected_value_is_named_with_what_was_expected(value: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as rejected:
        Outer.model_validate(value)
    found = invalid_values(rejected.value.errors())
    assert [f"{each.path}: {each.sentence}" for each in found] == [said]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_attempts: int = 1


class Holder(BaseModel):
    model_config = ConfigDict(extra="forbid")

    retry: Strict = Strict()


@pytest.mark.parametrize("each", list_all_errors(), ids=lambda each: each["type"])
def test_no_sentence_is_that_of_the_library(each: Any) -> None:
    context = each.get("example_context") or {}
    ((_, _, words),) = invalid_values(
        [{"loc": ("a",), "type": each["type"], "msg": each["example_message_python"], "ctx": context}]
    )
    for own in ("Input should", "Extra inputs", "Field required", "should be", "Value error"):
        assert own not in words
    assert words
    assert sentence(each["type"])


def test_an_unknown_field_is_explained_with_the_nearest_and_the_known_ones() -> None:
    with pytest.raises(ValidationError) as raised:
        Holder.model_validate({"retry": {"attempts": 3}, "more": 1})
    assert explained(raised.value, whole="definition", model=Holder) == (
        "retry.attempts: unknown field; did you mean max_attempts?; known fields are max_attempts; "
        "more: unknown field; known fields are retry"
    )
    with pytest.raises(ValidationError) as raised:
        Holder.model_validate([])
    assert explained(raised.value, whole="definition") == "definition: expected an object"
