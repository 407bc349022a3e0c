"""The figures that the One-Versus-Others paper prints, to stand beside ours (`replication`).

Scores are percent, mean and standard deviation over SEEDS seeds. `delta_flops` is printed without a unit of its own:
MACs of a batch of 16, minus those of the concatenation model (see `paper_costs`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BATCH = 16
"""Batch size whose cost the paper prints as that of a sample."""

SEEDS = 10
"""Runs behind every printed mean and standard deviation."""

CROSS, OWN, OVO = "cross_attention_reference", "self_attention_reference", "ovo_reference"
HEADS = ("concat", CROSS, OWN, OVO)
Score = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        model: as printed.
        scores: metric -> (mean, standard deviation), percent.
        head: our name of the authors' head; None = a modality alone.
        modality: our name of the modality; None = a head.
        delta_flops: as printed.
    """

    model: str
    scores: Mapping[str, Score]
    head: str | None = None
    modality: str | None = None
    delta_flops: int | None = None


@dataclass(frozen=True)
class PValue:
    """A printed p-value of OvO against another head (t-test over 10 seeds each).

    Attributes:
        metric: of the table.
        against: our name of the authors' head; None = the paper does not say.
        printed: as printed.
    """

    metric: str
    against: str | None
    printed: float


@dataclass(frozen=True)
class Table:
    """One data set's table.

    Attributes:
        dataset: our name of it.
        title: as printed.
        tasks: our tasks that repeat its experiment.
        modalities, dim, outputs: M, D and K of the paper's models.
        split: in words.
        positive: class that the AUPRC is of, where it is not the usual one.
        rows: as printed.
        p_values: as printed.
    """

    dataset: Literal["mimic", "tadpole", "eicu"]
    title: str
    tasks: tuple[str, ...]
    modalities: int
    dim: int
    outputs: int
    split: str
    rows: tuple[Row, ...]
    p_values: tuple[PValue, ...]
    positive: str | None = None


def _rows(metrics: tuple[str, str], lines: str) -> tuple[Row, ...]:
    """Lines of `model | our name of it | delta | mean sd | mean sd`; `-` = nothing there."""
    rows = []
    for line in lines.strip().splitlines():
        model, name, delta, *scores = (cell.strip() for cell in line.split("|"))
        pairs = [tuple(float(number) for number in score.split()) for score in scores]
        values = {metric: (mean, deviation) for metric, (mean, deviation) in zip(metrics, pairs, strict=True)}
        head, modality = (name, None) if name in HEADS else (None, name)
        rows.append(Row(model, values, head, modality, None if delta == "-" else int(delta)))
    return tuple(rows)


MIMIC = Table(
    dataset="mimic",
    title="MIMIC-IV + CXR",
    tasks=("mimic_paper",),
    modalities=4,
    dim=256,
    outputs=25,
    split="as MedFuse",
    rows=_rows(
        ("auroc", "auprc"),
        f"""
        LSTM, time series     | time_series     | -        | 58.8 0.6 | 28.5 0.4
        CNN, images           | image           | -        | 56.9 0.3 | 26.7 0.2
        network, demographics | demographics    | -        | 64.1 0.4 | 32.4 0.3
        ClinicalBERT, text    | text            | -        | 79.3 0.4 | 58.7 0.3
        concatenation         | concat          | -        | 82.7 0.6 | 65.1 1.8
        cross-attention       | {CROSS}         | 52723712 | 78.2 2.1 | 54.1 2.7
        self-attention        | {OWN}           | 67633152 | 78.5 2.0 | 55.7 3.1
        OvO                   | {OVO}           | 4227072  | 83.6 1.1 | 66.2 2.6
        """,
    ),
    p_values=(PValue("auroc", OWN, 0.00363), PValue("auprc", None, 0.000948)),
)

TADPOLE = Table(
    dataset="tadpole",
    title="TADPOLE",
    tasks=("tadpole_paper_text", "tadpole_paper_code"),
    modalities=6,
    dim=64,
    outputs=3,
    split="by patient in the text; the code splits visits",
    rows=_rows(
        ("mauc", "bca"),
        f"""
        AV45 PET        | av45_pet        | -       | 63.5 3.1 | 56.4 3.8
        CSF             | csf             | -       | 64.4 1.1 | 53.6 2.7
        MRI             | mri             | -       | 67.0 1.3 | 57.2 1.0
        FDG PET         | fdg_pet         | -       | 66.6 0.3 | 60.8 0.7
        demographics    | clinical        | -       | 74.6 0.9 | 62.0 0.6
        cognitive tests | cognitive_tests | -       | 97.8 0.2 | 88.6 0.7
        concatenation   | concat          | -       | 97.7 0.8 | 91.9 1.9
        cross-attention | {CROSS}         | 8921088 | 97.1 0.6 | 90.7 1.7
        self-attention  | {OWN}           | 9633792 | 94.8 1.1 | 86.6 2.6
        OvO             | {OVO}           | 405504  | 98.3 0.4 | 93.0 1.4
        """,
    ),
    p_values=(PValue("mauc", CROSS, 2.09e-7), PValue("bca", None, 8.19e-12)),
)

EICU = Table(
    dataset="eicu",
    title="eICU",
    tasks=("eicu_paper",),
    modalities=6,
    dim=256,
    outputs=2,
    split="80/10/10 in the text; 70/10/20 in the code",
    rows=_rows(
        ("auroc", "auprc"),
        f"""
        demographics    | demographics | -         | 50.2 0.6 | 91.8 0.2
        medication      | medication   | -         | 56.3 1.3 | 93.1 0.3
        diagnosis       | diagnosis    | -         | 58.2 2.1 | 93.3 0.4
        treatment       | treatment    | -         | 66.1 0.5 | 94.8 0.1
        APACHE APS      | aps          | -         | 77.6 0.2 | 97.0 0.1
        laboratory      | lab          | -         | 81.5 0.4 | 97.0 0.1
        concatenation   | concat       | -         | 81.7 1.6 | 97.5 0.3
        cross-attention | {CROSS}      | 129957888 | 77.6 1.6 | 95.4 0.3
        self-attention  | {OWN}        | 151781376 | 80.2 2.0 | 96.8 0.4
        OvO             | {OVO}        | 6340608   | 82.5 0.9 | 97.8 0.2
        """,
    ),
    p_values=(PValue("auroc", CROSS, 2.00e-15), PValue("auprc", None, 8.24e-14)),
    positive="alive",
)

TABLES = (MIMIC, TADPOLE, EICU)
