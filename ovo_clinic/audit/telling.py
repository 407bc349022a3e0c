"""Checks for features that tell the outcome: alone, by what they are called, or because a task says so."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.stats

from ovo_clinic import disclosure, flat_inspection, flat_parts
from ovo_clinic.audit.finding import Finding, Remarks, listed
from ovo_clinic.audit.subject import Floats, Rows, Subject, columns

TELLING = 0.98
"""AUROC above which a single feature is no measurement any more, but a copy of the label."""
LEAST = 5
"""Units of each class below which an AUROC says nothing."""
LEVEL = 0.05
"""Of the test that an AUROC is not due to chance, corrected for the number of features and labels."""
FEW_VALUES = 20
"""Up to so many different values each may stand for a class of its own, in any order."""
MOST_UNITS = 50_000
_WORDS = 20_000


@dataclass(frozen=True)
class Outcomes:
    """Labels of the units that are looked at, one yes-or-no question each.

    Attributes:
        rows: (n,) of the cohort.
        names: (K,) of labels, or of classes.
        yes: (n,K) 1, 0, or NaN = not known.
    """

    rows: Rows
    names: list[str]
    yes: Floats

    @classmethod
    def of(cls, subject: Subject) -> "Outcomes":
        """Those of at most MOST_UNITS labelled units."""
        target = subject.prepared.target
        labels = target.reshape(len(target), -1).astype(np.float64)
        rows = np.flatnonzero(subject.in_parts & ~np.isnan(labels).all(axis=1))
        if rows.size > MOST_UNITS:
            rows = np.sort(np.random.default_rng(0).choice(rows, MOST_UNITS, replace=False))
        if subject.prepared.manifest["kind"] != "multiclass":
            return cls(rows, list(subject.prepared.manifest["target"]), labels[rows])
        names = subject.prepared.manifest["classes"]
        return cls(rows, names, (labels[rows] == np.arange(len(names))).astype(np.float64))

    @cached_property
    def patterns(self) -> list[tuple[Rows, npt.NDArray[np.bool_]]]:
        """(questions, (n,) units for which they are answered), questions with the same units together."""
        known = ~np.isnan(self.yes)
        masks, place = np.unique(known, axis=1, return_inverse=True)
        return [(np.flatnonzero(place.ravel() == index), masks[:, index]) for index in range(masks.shape[1])]

    def auroc(self, values: Floats) -> tuple[Floats, Floats]:
        """(K,) AUROC of one feature (n,), NaN = missing, and how many standard errors it is from 1/2.

        Whichever direction is the larger; of a feature of few values, the better one of its order and of the share of
        each value's units. NaN where a class has fewer than LEAST units.
        """
        area, errors = np.full(self.yes.shape[1], np.nan), np.full(self.yes.shape[1], np.nan)
        measured = ~np.isnan(values)
        for questions, known in self.patterns:
            there = measured & known
            levels, place, counts = np.unique(values[there], return_inverse=True, return_counts=True)
            positives = np.stack(
                [np.bincount(place, self.yes[there, question], minlength=levels.size) for question in questions], axis=1
            )
            area[questions], errors[questions] = _areas(counts, positives.astype(np.float64))
        return area, errors


def _areas(counts: npt.NDArray[np.int64], positives: Floats) -> tuple[Floats, Floats]:
    """(K,) areas and standard errors from units (V,) and positives (V,K) of each value, ascending."""
    yes, total = positives.sum(axis=0), counts.sum()
    no = total - yes
    with np.errstate(invalid="ignore", divide="ignore"):
        in_order = _area(counts, positives)
        area = np.maximum(in_order, 1 - in_order)
        if 2 < len(counts) <= FEW_VALUES:
            shares = positives / counts[:, None]
            for index, order in enumerate(np.argsort(shares, axis=0, kind="stable").T):
                by_share = _area(counts[order], positives[order, index : index + 1])
                area[index] = max(area[index], by_share[0])
        errors = (area - 0.5) / np.sqrt((total + 1) / (12 * yes * no))
    few = (yes < LEAST) | (no < LEAST)
    return np.where(few, np.nan, area), np.where(few, np.nan, errors)


def _area(counts: npt.NDArray[np.int64], positives: Floats) -> Floats:
    """(K,) area under the ROC curve with the values in this order, ties counted half."""
    negatives = counts[:, None] - positives
    below = np.cumsum(negatives, axis=0) - negatives
    won = (positives * (below + negatives / 2)).sum(axis=0)
    area: Floats = won / (positives.sum(axis=0) * negatives.sum(axis=0))
    return area


def features_that_tell(subject: Subject) -> Remarks:
    """Single features, the absence of one, the presence of a modality, or a word, with an AUROC above TELLING."""
    outcomes = Outcomes.of(subject)
    tested = list(_tested(subject, outcomes))
    chance = LEVEL / max(1, len(tested) * len(outcomes.names))
    limit = float(scipy.stats.norm.isf(chance / 2))
    found: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for name, column, feature, area, errors in tested:
        sure = np.where(errors > limit, area, 0)
        if sure.max(initial=0) > TELLING:
            label = outcomes.names[int(sure.argmax())]
            found[name, subject.declared(column)].append(f"{feature} tells {label} (AUROC {sure.max():.3f})")
    for (name, declared), told in found.items():
        yield Finding(
            what=f"{len(told)} feature(s) predict a label alone with an AUROC above {TELLING}: {listed(told, 5)}",
            where=name,
            count=len(told),
            why="no measurement does that: it is the label, or was written down because of it",
            mend="leave it out, add its column to `banned`, or give the reason in the task's `kept_on_purpose`",
            declared=declared,
        )


_Tested = tuple[str, str, str, Floats, Floats]


def _tested(subject: Subject, outcomes: Outcomes) -> Iterator[_Tested]:
    """(modality, column, feature, (K,) area, (K,) standard errors) of everything that a model can see alone."""
    for name in subject.prepared.modalities:
        present = subject.prepared.present(name)[outcomes.rows].astype(np.float64)
        yield name, name, f"presence of {name}", *outcomes.auroc(present)
    for name, array in subject.unit_features():
        rows = outcomes.rows[array.present[outcomes.rows]]
        place = np.flatnonzero(array.present[outcomes.rows])
        seen = set()
        for column, measured in columns(array, rows):
            values, there = np.full((2, outcomes.rows.size), np.nan)
            values[place], there[place] = measured, ~np.isnan(measured)
            yield name, column.group, column.name, *outcomes.auroc(values)
            if column.role == "numeric" and column.group not in seen:
                seen.add(column.group)
                yield name, column.group, f"presence of {column.group}", *outcomes.auroc(there)
    for name in subject.of_kind("text"):
        yield from _words(subject, name, outcomes)


def _words(subject: Subject, name: str, outcomes: Outcomes) -> Iterator[_Tested]:
    """Whether the text holds a word, of words in so many texts that they point at nobody."""
    from sklearn.feature_extraction.text import CountVectorizer

    texts = subject.prepared.texts(name).gather(outcomes.rows)
    there = texts.is_not_null().to_numpy()
    if int(there.sum()) < 2 * disclosure.SMALLEST:
        return
    vectorizer = CountVectorizer(binary=True, min_df=disclosure.SMALLEST, max_features=_WORDS)
    try:
        held = vectorizer.fit_transform(texts.drop_nulls()).tocsc()
    except ValueError:  # no word is in so many texts
        return
    for index, word in enumerate(vectorizer.get_feature_names_out()):
        values = np.full(outcomes.rows.size, np.nan)
        values[there] = 0
        values[np.flatnonzero(there)[held.indices[held.indptr[index] : held.indptr[index + 1]]]] = 1
        yield name, name, f"the word '{word}'", *outcomes.auroc(values)


def names_of_outcomes(subject: Subject) -> Remarks:
    """Columns that the spec bans, and columns called like something that is known only at the end."""
    banned = {column.lower() for column in subject.spec.banned}
    for name in subject.of_kind("vector", "sequence"):
        array = subject.prepared.array(name)
        groups = list(dict.fromkeys(column.group for column in array.columns))
        hits = [group for group in groups if group.lower() in banned]
        yield from _named(subject, name, hits, "are banned in the spec because they state the outcome", "uses_banned")
        # A code or a laboratory test may be called anything; the columns of a vector are what the pipeline named.
        if "kept_by" not in subject.prepared.manifest["modalities"][name]:
            alike = [group for group in groups if group not in hits and _like_an_outcome(group)]
            told = "are called like something that is known only after the outcome"
            yield from _named(subject, name, alike, told, "kept_on_purpose")


def _like_an_outcome(group: str) -> bool:
    return flat_parts.OUTCOME.search(flat_inspection.words(group)) is not None


def _named(subject: Subject, name: str, groups: Sequence[str], told: str, key: str) -> Iterator[Finding]:
    by_reason: dict[str | None, list[str]] = defaultdict(list)
    for group in groups:
        reason = subject.task.kept_on_purpose.get(group)
        if key != "uses_banned" or group in subject.task.uses_banned:
            reason = reason or subject.leaky
        by_reason[reason].append(group)
    for reason, those in by_reason.items():
        yield Finding(
            what=f"{len(those)} feature column(s) {told}: {listed(those)}",
            where=name,
            count=len(those),
            why="discharge, death and length of stay are known only once the outcome is",
            mend=f"leave them out; one that is known in time is declared, with the reason, in the task's `{key}`",
            declared=reason,
        )


def declared_leaks(subject: Subject) -> Remarks:
    """What the task itself says of its features."""
    if subject.leaky:
        yield Finding(
            what="the task is marked as leaky",
            where="the whole task",
            count=1,
            why="its scores are not those of a model that could be used",
            mend="use a task without `leaky` for any claim about patients",
            declared=subject.leaky,
        )
    for name in subject.of_kind("vector", "sequence"):
        groups = {column.group for column in subject.prepared.array(name).columns}
        by_reason: dict[str, list[str]] = defaultdict(list)
        for column in sorted(groups & set(subject.task.kept_on_purpose)):
            by_reason[subject.task.kept_on_purpose[column]].append(column)
        for reason, kept in by_reason.items():
            yield Finding(
                what=f"{len(kept)} feature column(s) are kept on purpose: {listed(kept)}",
                where=name,
                count=len(kept),
                why="they tell the outcome",
                mend="leave them out for any claim about what the other features can do",
                declared=reason,
            )
