"""Section: what every part of a configuration is, and the bounds of its numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """Base of all sections: unknown keys and non-finite numbers are errors, docstrings are descriptions."""

    model_config = ConfigDict(
        extra="forbid", validate_default=True, use_attribute_docstrings=True, frozen=True, allow_inf_nan=False
    )
