"""What sections of the configuration have in common."""

from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class Section(BaseModel):
    """What all sections share: no unknown keys, no changes once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Placement(Section):
    """Where replicas of a deployment go.

    Attributes:
        cpus: CPUs Ray reserves for each; a reservation, not a limit.
    """

    replicas: PositiveInt = 1
    cpus: float = Field(default=0.1, ge=0)
