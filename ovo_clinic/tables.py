"""What a pipeline returns: a cohort, one table per modality, and the count of every exclusion.

A pipeline only says what the raw files hold for each unit (an ICU stay, a visit); it fits nothing. `prepare` splits by
patient, fits vocabularies on training units, and writes the arrays. In every table `unit_id` names the unit, and a unit
without a row in a modality's table is a unit in which that modality is absent.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import polars as pl


@dataclass(frozen=True)
class Step:
    """One rule of the cohort, in the order applied.

    Attributes:
        rule: what is kept, in words.
        units: units left after the rule.
        patients: people left after the rule.
        positives: units left whose label is positive (binary tasks; None where the label is not known yet).
        classes: units left of each class, by its name (multiclass tasks; None elsewhere).
        negatives: units left whose label is known and not positive (binary tasks; None where it is not counted).
    """

    rule: str
    units: int
    patients: int
    positives: int | None = None
    classes: Mapping[str, int] | None = None
    negatives: int | None = None


@dataclass(frozen=True)
class Vocabulary:
    """Which codes or variables become features; counted on training units only.

    Attributes:
        share: the least share of units that must have the code.
        of: `units` = all training units; `present` = training units that have a row in this table.
        strictly_more: keep when count > floor(share * total) (the OvO notebooks' rule), not count >= share * total.
        fixed: keep exactly these, in this order, whatever is counted: a trained model's.
    """

    share: float
    of: Literal["units", "present"] = "units"
    strictly_more: bool = False
    fixed: tuple[str, ...] | None = None

    def least(self, total: int) -> int:
        """The least count that is kept; exact in decimal, as 0.07 * 100 is above 7 in binary."""
        threshold = Fraction(str(self.share)) * total
        return max(1, math.floor(threshold) + 1 if self.strictly_more else math.ceil(threshold))


@dataclass(frozen=True, kw_only=True)
class Dated:
    """What any modality's table may say beside its values.

    Attributes:
        latest: unit_id, hours (Float64, since the index time): when the last of the records that the unit's features
            come from became known, which is when it was measured, ordered, stored or revised, whatever came last; one
            row a unit. No feature: `audit` holds it against the prediction time. None where records have no times.
    """

    latest: pl.DataFrame | None = None


@dataclass(frozen=True)
class VectorTable(Dated):
    """One row a unit, named columns.

    Attributes:
        frame: unit_id and feature columns. The dtype is the role: numeric = a measurement (null = missing, imputed with
            the training median and flagged), Boolean = 0/1 (null not allowed), String = categorical (null = a level of
            its own; levels are those of the training units).
    """

    frame: pl.DataFrame


@dataclass(frozen=True)
class CodesTable(Dated):
    """Sets of codes, made into 0/1 features.

    Attributes:
        frame: unit_id, code (String), one row a pair. A unit present in the frame whose codes are all outside the
            vocabulary is a present zero vector.
        vocabulary: which codes are kept.
    """

    frame: pl.DataFrame
    vocabulary: Vocabulary


@dataclass(frozen=True)
class SummariesTable(Dated):
    """Statistics of repeated measurements, made into features named `variable|statistic`.

    Attributes:
        frame: unit_id, variable (String), and one numeric column per statistic.
        vocabulary: which variables are kept.
        zero_filled: statistics for which no measurement means 0 (a count); the others are missing there, and share one
            missing-value indicator per variable.
    """

    frame: pl.DataFrame
    vocabulary: Vocabulary
    zero_filled: frozenset[str] = frozenset({"count"})


@dataclass(frozen=True)
class SequenceTable(Dated):
    """Time series, made into ragged arrays: one time step per distinct (unit, hours).

    Attributes:
        frame: unit_id, hours (Float64, since the index time), variable (String), value (Float64); at most one row for
            each (unit_id, hours, variable).
        vocabulary: which variables are kept.
    """

    frame: pl.DataFrame
    vocabulary: Vocabulary


@dataclass(frozen=True)
class StepsTable(Dated):
    """Time series in regular steps, one row a step; nothing is fitted.

    Attributes:
        frame: unit_id, hours (Float64, start of the step since the index time; kept for `export`, no feature) and one
            column per feature, in order. The dtype is the role: numeric = a measurement (null = missing), Boolean = 0/1
            (null not allowed). One row for each (unit_id, hours); rows in any order.
    """

    frame: pl.DataFrame


@dataclass(frozen=True)
class ImageTable(Dated):
    """One image a unit, decoded and resized by `prepare`.

    Attributes:
        frame: unit_id, path (String, absolute; the file is there) and further columns worth keeping, such as
            hours_from_intime. A file that cannot be decoded is skipped: the modality is absent in that unit.
        size: side of the square grey image in pixels.
        recipe: name of a recipe of `images.py` that resizes it.
        absent: absolute paths of files that were looked for and are not there; once one of them is, the data are
            prepared anew.
    """

    frame: pl.DataFrame
    size: int
    recipe: str
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextTable(Dated):
    """One text a unit, tokenised later by the encoder's own tokenizer.

    Attributes:
        frame: unit_id, text (String, not blank).
    """

    frame: pl.DataFrame


ModalityTable = VectorTable | CodesTable | SummariesTable | SequenceTable | StepsTable | ImageTable | TextTable


@dataclass(frozen=True)
class Tables:
    """What a pipeline returns.

    Attributes:
        cohort: unit_id, patient_id, the label column(s) of the task, and further columns for splitting and subgroups;
            one row a unit. Order does not matter: prepare sorts by unit_id.
        modalities: in the order of the spec.
        attrition: the rules in the order applied, the first one counting what the raw files hold.
        notes: counts worth telling that are no exclusion (records dropped after the prediction time, ...).
    """

    cohort: pl.DataFrame
    modalities: Mapping[str, ModalityTable]
    attrition: list[Step]
    notes: Mapping[str, int | float | str] = field(default_factory=dict)
