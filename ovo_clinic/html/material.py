"""Everything that a study report is made of, computed once and written as csv beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ovo_clinic import calibration_tables, cohort_tables, encoder_tables, folds, latency, outcomes, subgroups
from ovo_clinic.outcomes import Outcome
from ovo_clinic.report import ComparisonTable
from ovo_clinic.study import Comparison

ASKED_FOR = ("missingness", "importance", *folds.FILES, *encoder_tables.FILES)
"""Tables that stand in the study's folder where they were asked for."""


@dataclass(frozen=True)
class Material:
    """The numbers of a report.

    Attributes:
        comparison: the finished runs.
        table: their numbers.
        outcomes: the yes-or-no outcomes of the task, with predictions of single units: not for the page.
        tables: name -> aggregates, as they stand in NAME.csv.
    """

    comparison: Comparison
    table: ComparisonTable
    outcomes: list[Outcome]
    tables: Mapping[str, pd.DataFrame]


def gather(comparison: Comparison, table: ComparisonTable) -> Material:
    """Computes what the report adds to the table of a study; ASKED_FOR are read where they are."""
    found = outcomes.outcomes(comparison)
    tables = {
        "table_one": cohort_tables.table_one(comparison.prepared),
        "missing_patterns": cohort_tables.missing_patterns(comparison.prepared),
        "calibration": calibration_tables.metrics_table(found),
        "reliability": calibration_tables.reliability_table(found),
        "decision_curves": calibration_tables.decision_table(found),
        "subgroups": subgroups.table(comparison),
        "costs": latency.cost_table(comparison),
    }
    if comparison.prepared.manifest["kind"] == "multiclass":
        tables["classes"] = outcomes.table(found)
    files = {name: comparison.folder / f"{name}.csv" for name in ASKED_FOR}
    tables |= {name: pd.read_csv(file) for name, file in files.items() if file.is_file()}
    return Material(comparison, table, found, tables)


def save(material: Material) -> list[Path]:
    """Writes every table as csv into the study's folder."""
    written = []
    for name, frame in material.tables.items():
        if name not in ASKED_FOR:
            written.append(material.comparison.folder / f"{name}.csv")
            frame.to_csv(written[-1], index=False)
    return written
