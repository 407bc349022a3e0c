"""What can be attained on the synthetic MIMIC folders: AUROC of the probabilities that the labels were drawn from."""

from typing import Any

import numpy as np

from ovo_clinic.synthetic.mimic_signal import Booleans, Floats, terms
from ovo_clinic.synthetic.mimic_stays import Chunk
from ovo_clinic.synthetic.mimic_targets import TARGETS

SHARED = ("series_image", "text_demographics")
"""Terms that two modalities tell together."""


class Oracle:
    """Labels, probabilities and summands of the stays of the task `mimic_phenotyping` that have all modalities."""

    def __init__(self) -> None:
        self._labels: list[Booleans] = []
        self._scores: dict[str, list[Floats]] = {}

    def add(self, chunk: Chunk) -> None:
        """Takes what is needed of one chunk."""
        stays, admissions = chunk.stays, chunk.admissions
        visit = stays.visit
        alone = np.bincount(visit, minlength=len(admissions.died))[visit] == 1
        adult = admissions.age[visit] >= 18
        eligible = alone & adult & admissions.coded[visit] & ~stays.transferred & ~stays.open
        chosen = visit[eligible & stays.imaged & stays.reported]
        summands = terms(admissions.latents.rows(chosen))
        scores = {
            "oracle": admissions.probability[chosen],
            **summands,
            "all_but_shared": np.sum([term for name, term in summands.items() if name not in SHARED], axis=0),
        }
        self._labels.append(admissions.labels[chosen])
        for name, score in scores.items():
            self._scores.setdefault(name, []).append(score)

    def report(self) -> dict[str, Any]:
        """AUROC of the true probabilities, of each term alone, and of all terms that one modality tells."""
        labels = np.concatenate(self._labels)
        scores = {name: np.concatenate(parts) for name, parts in self._scores.items()}
        phenotypes = slice(0, len(TARGETS) - 1)
        return {
            "cohort": "stays of the task mimic_phenotyping, adults, that have an image and a report, no split",
            "stays": len(labels),
            "prevalence": {target.name: _mean(labels[:, place]) for place, target in enumerate(TARGETS)},
            "phenotyping_macro_auroc": {
                name: _macro_auroc(score[:, phenotypes], labels[:, phenotypes]) for name, score in scores.items()
            },
            "mortality_auroc": {name: _macro_auroc(score[:, -1:], labels[:, -1:]) for name, score in scores.items()},
        }


def _mean(label: Booleans) -> float | None:
    return round(float(label.mean()), 4) if len(label) else None


def _macro_auroc(score: Floats, labels: Booleans) -> float | None:
    """Mean over the labels that have both classes; None where none has."""
    from ovo_clinic.metrics import auroc  # slow to import, and this module is imported to list data sets

    both = labels.any(0) & ~labels.all(0) if len(labels) else np.zeros(labels.shape[1], np.bool_)
    values = [auroc(score[:, place], labels[:, place]) for place in np.flatnonzero(both)]
    return round(float(np.mean(values)), 4) if values else None
