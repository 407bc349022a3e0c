"""The OvO paper's simulated data (section 3.4, Appendix B): 20 modalities that only together tell two classes apart.

A sample is 20 values, one per modality. In class 1 they sum to 1: one draw from Dirichlet(1, ..., 1). In class 2 each
is uniform in (0, 0.15). The paper spreads each value into 20 numbers "within one standard deviation" of it; read here
as: each number is uniform in (value - sd, value + sd), where sd is the (population) standard deviation of the sample's
own 20 values. No modality is ever absent.
"""

from typing import Annotated

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from ovo_clinic.raw import RawFolder
from ovo_clinic.spec import DatasetSpec
from ovo_clinic.tables import Step, Tables, VectorTable

MODALITIES = 20
NUMBERS = 20
UPPER = 0.15


def tables(
    raw: RawFolder,
    spec: DatasetSpec,
    *,
    modalities: Annotated[int, Field(ge=2, le=MODALITIES)] = MODALITIES,
    samples: Annotated[int, Field(ge=2, le=10_000_000)] = 2000,
    seed: Annotated[int, Field(ge=0)] = 0,
) -> Tables:
    """Draws the simulation.

    Args:
        raw: not read; the data set makes its own data.
        spec: names the modalities; the first of them are used.
        modalities: how many; a sample's numbers do not depend on it.
        samples: half of them (rounded down) are of class 2.
        seed: of the draw.
    """
    random = np.random.default_rng(seed)
    class_2 = random.permutation(np.arange(samples) % 2)
    numbers = spread(values(class_2.astype(np.bool_), random), random)
    units = pl.Series("unit_id", np.arange(samples))
    cohort = pl.DataFrame({"unit_id": units, "patient_id": units, "class_2": class_2})
    named = [f"number_{position:02d}" for position in range(1, NUMBERS + 1)]
    found = {
        name: VectorTable(pl.DataFrame(numbers[:, index], schema=named).insert_column(0, units))
        for index, name in enumerate(list(spec.modalities)[:modalities])
    }
    return Tables(cohort, found, [Step("simulated samples", samples, samples, int(class_2.sum()))])


def values(class_2: npt.NDArray[np.bool_], random: np.random.Generator) -> npt.NDArray[np.float64]:
    """(N,20) one value per modality, for class_2 (N,), True = class 2."""
    simplex = random.dirichlet(np.ones(MODALITIES), class_2.size)
    uniform = random.uniform(0, UPPER, (class_2.size, MODALITIES))
    return np.where(class_2[:, None], uniform, simplex)


def spread(means: npt.NDArray[np.float64], random: np.random.Generator) -> npt.NDArray[np.float64]:
    """(N,20) values -> (N,20,20) numbers, each uniform within one standard deviation of its sample's values."""
    deviation: npt.NDArray[np.float64] = means.std(axis=1)[:, None, None]
    return means[:, :, None] + deviation * random.uniform(-1, 1, (*means.shape, NUMBERS))
