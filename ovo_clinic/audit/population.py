"""Checks of who is in the cohort and where: labels over the parts of the split, and rules that select by outcome."""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
import scipy.stats

from ovo_clinic.audit.finding import Finding, Remarks, Unchecked
from ovo_clinic.audit.subject import Floats, Subject
from ovo_clinic.splitting import SPLITS
from ovo_clinic.statistics.corrections import holm

LEVEL = 0.001
"""Of each test, after correction: an audit runs often, and a false alarm teaches to ignore it."""
DRIFT = 0.2
"""Least effect (Cohen's h, small) of a drift of labels: large data make every difference significant."""
SELECTION = 0.8
"""Least effect (Cohen's h, large) of a rule's selection by outcome: who is still there at the prediction time differs
from who is not, and rightly so."""


def effect(first: Floats, second: Floats) -> Floats:
    """Cohen's h of two shares, the difference of their arcsine-transformed roots, without sign."""
    result: Floats = np.abs(2 * np.arcsin(np.sqrt(first)) - 2 * np.arcsin(np.sqrt(second)))
    return result


def prevalence_drift(subject: Subject) -> Remarks:
    """Labels, or classes, that are more frequent in one part than in another, counted in patients."""
    names, p_values, effects = [], [], []
    for name, positive, units in _patients(subject):
        table = np.stack([positive, units - positive])
        if np.count_nonzero(units) > 1 and table.sum(axis=1).all():
            there = units > 0
            shares = positive[there] / units[there]
            names.append(name)
            p_values.append(scipy.stats.chi2_contingency(table[:, there], correction=False).pvalue)
            effects.append(float(effect(shares.max(), shares.min())))
    corrected = holm(p_values) if p_values else np.empty(0)
    drifting = [name for name, p, size in zip(names, corrected, effects, strict=True) if p < LEVEL and size >= DRIFT]
    if drifting:
        yield Finding(
            what=f"{len(drifting)} of {len(names)} labels are more frequent in one part of the split than in another: "
            + "; ".join(_shares(subject, name) for name in drifting[:5]),
            where="split",
            count=len(drifting),
            why="parts that differ by more than chance were not drawn alike: by time, site or outcome",
            mend="draw the split at random, stratified; where time or site divides it on purpose, name that column in "
            "`split.column` or `split.by`",
            declared=subject.divided or subject.leaky,
        )


def _patients(subject: Subject) -> Iterator[tuple[str, Floats, Floats]]:
    """(label, (3,) patients with it, (3,) patients whose label is known) in each part; one with any positive has it."""
    prepared = subject.prepared
    target = prepared.target.reshape(prepared.cohort.height, -1)
    multiclass = prepared.manifest["kind"] == "multiclass"
    questions = enumerate(prepared.manifest["classes"]) if multiclass else enumerate(prepared.manifest["target"])
    people = prepared.cohort.select("patient_id").with_columns(part=pl.Series(subject.split))
    for index, name in questions:
        label = np.where(np.isnan(target[:, 0]), np.nan, target[:, 0] == index) if multiclass else target[:, index]
        known = people.with_columns(label=pl.Series(label)).filter(pl.col("label").is_not_nan())
        by_person = known.group_by("part", "patient_id").agg(pl.col("label").max())
        counts = by_person.group_by("part").agg(pl.col("label").sum(), pl.len())
        found = {part: (positive, units) for part, positive, units in counts.iter_rows()}
        table = np.array([found.get(part, (0, 0)) for part in SPLITS], dtype=np.float64)
        yield name, table[:, 0], table[:, 1]


def _shares(subject: Subject, wanted: str) -> str:
    _, positive, units = next(found for found in _patients(subject) if found[0] == wanted)
    shares = (f"{part} {yes / max(1, total):.1%}" for part, yes, total in zip(SPLITS, positive, units, strict=True))
    return f"{wanted} ({', '.join(shares)} of the patients)"


def selection_by_outcome(subject: Subject) -> Remarks:
    """Rules of the cohort that remove the units of one class far more often than those of another."""
    steps = subject.prepared.manifest["attrition"]
    known = [_classes(step) for step in steps]
    if not any(known) and len(steps) > 1:
        yield Unchecked("attrition", "the pipeline does not count the classes after each rule")
        return
    for step, before, after in zip(steps[1:], known, known[1:], strict=False):
        names = [name for name in after if before.get(name)]
        if len(names) < 2 or not _selects(before, after, names, len(steps)):
            continue
        told = ", ".join(f"{1 - after[name] / before[name]:.0%} of {name}" for name in names)
        yield Finding(
            what=f"a rule of the cohort removes {told}",
            where=f"attrition: {step['rule']}",
            count=sum(before[name] - after[name] for name in names),
            why="who is left was chosen by what is to be predicted; in use nobody can choose so",
            mend="replace the rule by one that can be applied at the prediction time, or say whom it leaves out",
            declared=subject.leaky,
        )


def _classes(step: Mapping[str, object]) -> dict[str, int]:
    """Class -> units, of a step; empty where they are not counted."""
    if isinstance(classes := step.get("classes"), dict):
        return classes
    positives, negatives = step.get("positives"), step.get("negatives")
    if isinstance(positives, int) and isinstance(negatives, int):
        return {"positives": positives, "negatives": negatives}
    return {}


def _selects(before: Mapping[str, int], after: Mapping[str, int], names: list[str], rules: int) -> bool:
    kept = np.array([after[name] for name in names], dtype=np.float64)
    removed = np.array([before[name] for name in names]) - kept
    if not removed.any() or not kept.any():
        return False
    shares = removed / (removed + kept)
    p = scipy.stats.chi2_contingency(np.stack([kept, removed]), correction=False).pvalue
    return bool(p < LEVEL / rules and effect(shares.max(), shares.min()) >= SELECTION)
