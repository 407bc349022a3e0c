"""Who is in the cohort: table one by outcome, and which modalities go missing together; small cells hidden."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ovo_clinic import disclosure, subgroups
from ovo_clinic.prepared import Prepared

Mask = NDArray[np.bool_]

MOST_COLUMNS = 6
"""A task of more labels has no column of its own for each in table one."""
MOST_PATTERNS = 12
OVERALL = "all"


def table_one(prepared: Prepared) -> pd.DataFrame:
    """The cohort by outcome: counts, percent, medians with quartiles.

    Returns:
        Text cells, one row per characteristic: characteristic, `all`, and one column per class, or per label of a
        multilabel task. Classes and labels are of the units that have one. A count of 1 to 10 is hidden, and what it
        would follow from.
    """
    columns, partition = _columns(prepared)
    everyone = columns[OVERALL]
    patients = prepared.cohort["patient_id"].to_numpy()
    lines = [
        _size_line("Units", {name: int(mask.sum()) for name, mask in columns.items()}, partition),
        _size_line("Patients", {name: len(np.unique(patients[mask])) for name, mask in columns.items()}, partition),
    ]
    for name in subgroups.columns(prepared):
        if subgroups.is_measured(prepared.cohort[name]):
            lines.append(_median_line(prepared, name, columns))
    for grouping in subgroups.groupings(prepared, np.arange(everyone.size)):
        if not subgroups.is_measured(prepared.cohort[grouping.column]):
            lines += _count_lines(grouping.title, grouping.levels, columns, partition)
    for name in prepared.modalities:
        present = prepared.present(name)
        levels = {"present": present, "absent": ~present}
        lines += _count_lines(f"Modality {name}", levels, columns, partition)[:1]
    return pd.DataFrame(lines)


def _columns(prepared: Prepared) -> tuple[dict[str, Mask], bool]:
    """Name -> (N,), and whether all but the first one are a partition of it."""
    target, manifest = prepared.target, prepared.manifest
    columns = {OVERALL: np.ones(len(target), dtype=np.bool_)}
    if manifest["kind"] == "multilabel":
        names = manifest["target"] if len(manifest["target"]) <= MOST_COLUMNS else []
        labels = target.reshape(len(target), -1)
        return columns | {name: labels[:, index] == 1 for index, name in enumerate(names)}, False
    names = manifest["classes"] or ["negative", "positive"]
    return columns | {name: target == index for index, name in enumerate(names)}, not bool(np.isnan(target).any())


def _size_line(title: str, sizes: Mapping[str, int], partition: bool) -> dict[str, str]:
    """How many each column has; where the others make up the first one, no small size follows from the total."""
    cells = {name: text for name, size in sizes.items() for text in disclosure.parts({name: size}).values()}
    if partition:
        cells |= disclosure.parts({name: size for name, size in sizes.items() if name != OVERALL})
    return {"characteristic": title, **cells}


def _median_line(prepared: Prepared, name: str, columns: Mapping[str, Mask]) -> dict[str, str]:
    values = prepared.cohort[name].cast(float).to_numpy()
    patients = prepared.cohort["patient_id"].to_numpy()
    cells = {}
    for column, mask in columns.items():
        known = mask & ~np.isnan(values)
        own, enough = values[known], np.unique(patients[known]).size >= disclosure.SMALLEST
        low, middle, high = np.quantile(own, [0.25, 0.5, 0.75]) if enough else (np.nan,) * 3
        cells[column] = f"{middle:.3g} [{low:.3g}, {high:.3g}]" if enough else "–"
    return {"characteristic": f"{subgroups.words(name)}, median [quartiles]", **cells}


def _count_lines(
    title: str, levels: Mapping[str, Mask], columns: Mapping[str, Mask], partition: bool
) -> list[dict[str, str]]:
    """One line per level: count and percent of the column."""
    counts = np.array([[np.sum(level & mask) for mask in columns.values()] for level in levels.values()])
    hide = np.zeros(counts.shape, dtype=np.bool_)
    if partition:
        hide[:, 1:] = disclosure.hidden(counts[:, 1:])
        hide[:, :1] = disclosure.hidden(counts[:, :1])
    else:
        for index in range(counts.shape[1]):
            hide[:, [index]] = disclosure.hidden(counts[:, [index]])
    sizes = [max(1, int(mask.sum())) for mask in columns.values()]
    lines = []
    for level, row, marks in zip(levels, counts, hide, strict=True):
        cells = [
            disclosure.cell(count, mark, f"{count:,} ({100 * count / size:.1f} %)")
            for count, mark, size in zip(row, marks, sizes, strict=True)
        ]
        lines.append({"characteristic": f"{title}: {level}", **dict(zip(columns, cells, strict=True))})
    return lines


def missing_patterns(prepared: Prepared) -> pd.DataFrame:
    """Which modalities the units of the cohort have together.

    Returns:
        One row per pattern, from the most frequent one: a column of True and False per modality, `units`, `share`. The
        rarer patterns stand together in the last row, with no value for the modalities.
    """
    names = prepared.modalities
    there = np.column_stack([prepared.present(name) for name in names])
    patterns, kind, sizes = np.unique(there, axis=0, return_inverse=True, return_counts=True)
    kind = kind.reshape(-1)
    shown, rest = disclosure.pooled(kind, prepared.cohort["patient_id"].to_numpy(), MOST_PATTERNS)
    lines = [dict(zip(names, patterns[key].tolist(), strict=True)) | {"units": int(sizes[key])} for key in shown]
    if rest:
        lines.append(dict.fromkeys(names) | {"units": int(sizes[rest].sum())})
    found = pd.DataFrame(lines, columns=[*names, "units"])
    return found.assign(share=found["units"] / len(there))
