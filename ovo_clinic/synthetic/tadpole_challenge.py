"""The challenge's other files, in synthetic form: D3 (last visit, few columns) and D4 (later visits, the truth)."""

import numpy as np
import polars as pl

from ovo_clinic.synthetic.tadpole_blocks import block_names
from ovo_clinic.synthetic.tadpole_cells import choose, dates, numbers, where
from ovo_clinic.synthetic.tadpole_merge import rolled_over
from ovo_clinic.synthetic.tadpole_people import YEARLY, People, Visits
from ovo_clinic.synthetic.tadpole_signal import STAGES

D3_COLUMNS = (
    "RID VISCODE EXAMDATE DX AGE PTGENDER PTEDUCAT PTETHCAT PTRACCAT PTMARRY COLPROT ADAS13 MMSE Ventricles Hippocampus"
    " WholeBrain Entorhinal Fusiform MidTemp ICV"
).split()
MISSING = "-4"
D4_SHARE = 0.25
"""Share of the people of D2 who are seen again."""
D4_AGAIN = 0.02
"""Share of them with a second visit."""


def d3_table(last: pl.DataFrame) -> pl.DataFrame:
    """D3: the last visit of everybody in D2; a missing value is -4 everywhere.

    Args:
        last: these visits, as in D1_D2.
    """
    blank = {name: pl.col(name).str.strip_chars() == "" for name in (*D3_COLUMNS, *block_names("sectional"))}
    return last.select(**{name: pl.when(empty).then(pl.lit(MISSING)).otherwise(name) for name, empty in blank.items()})


def d4_table(rng: np.random.Generator, people: People, visits: Visits) -> pl.DataFrame:
    """D4: visits a year or two after D2, with the diagnosis, the ADAS13 and the ventricles as a share of the ICV."""
    ends = np.flatnonzero(np.append(visits.person[1:] != visits.person[:-1], True))
    ends = ends[rolled_over(people, visits)[visits.person[ends]]]
    rows = np.sort(rng.choice(ends, int(np.ceil(D4_SHARE * ends.size)), replace=False))
    rows = np.sort(np.append(rows, rng.choice(rows, int(D4_AGAIN * rows.size), replace=False)))
    stage = (rng.random(rows.size)[:, None] > YEARLY[visits.stage[rows]].cumsum(axis=1)[:, :2]).sum(axis=1)
    again = np.append(False, rows[1:] == rows[:-1])
    seen = visits.date[rows] + rng.integers(200, 700, rows.size) + 365 * again
    scanned = rng.random(rows.size) > 0.3
    known = rng.random(rows.size) > 0.03
    return pl.DataFrame(
        {
            "RID": numbers(people.rid[visits.person[rows]]),
            "CognitiveAssessmentDate": dates(seen),
            "Diagnosis": where(known, choose(STAGES, stage), ""),
            "ADAS13": numbers(np.clip(11 + 8 * stage + rng.normal(0, 5, rows.size), 0, 85), 2),
            "ScanDate": dates(seen + rng.integers(0, 60, rows.size), scanned),
            "Ventricles": numbers(
                np.clip(0.024 + 0.004 * stage + rng.normal(0, 0.008, rows.size), 0.004, 0.1), 6, scanned
            ),
        }
    )
