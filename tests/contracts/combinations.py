"""Every routing with every mechanism, plain and preconditioned: which are accepted, and why the rest are not."""

from dataclasses import dataclass
from typing import Any

from ovo_clinic.errors import UserError
from ovo_clinic.registry import ATTENTION, FUSION
from ovo_clinic.types import Modality

DIM = 16
MODALITIES = [Modality("labs", "vector", 4), Modality("vitals", "sequence", 3), Modality("codes", "vector", 9)]
Case = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Combinations:
    """What building a head gave.

    Attributes:
        accepted: those with a mechanism.
        refused: with the message.
        other: heads that take no mechanism.
    """

    accepted: list[Case]
    refused: list[tuple[Case, str]]
    other: list[Case]

    def summary(self) -> list[str]:
        """Counts, and each reason once for a routing and mechanism."""
        reasons = {f"{name} x {options['attention']}: {reason}" for (name, options), reason in self.refused}
        counts = f"{len(self.accepted)} accepted, {len(self.refused)} refused"
        return [f"routing x mechanism x precondition: {counts}", *(f"  refused {reason}" for reason in sorted(reasons))]


def combinations() -> Combinations:
    """Builds every head with every mechanism that is registered."""
    found = Combinations([], [], [])
    for name in FUSION.names():
        options = FUSION.schema(name).model_fields
        preconditions = (False, True) if "precondition" in options else (None,)
        for precondition in preconditions:
            given = {} if precondition is None else {"precondition": precondition}
            if "attention" not in options:
                found.other.append((name, given))
                continue
            for mechanism in ATTENTION.names():
                case = (name, {"attention": mechanism, **given})
                try:
                    FUSION.build(name, DIM, MODALITIES, options=case[1])
                except UserError as error:
                    found.refused.append((case, str(error)))
                else:
                    found.accepted.append(case)
    return found
