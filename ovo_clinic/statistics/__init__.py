"""Tests and intervals for comparisons; every one of them says which variation it speaks of.

- Over **seeds** (`runs`): would another random start turn the ranking around, on the same split? More seeds make any
  difference significant; they are not patients.
- Over **splits** (`runs.corrected_resampled_t_test`): would another draw of training and test patients?
- Over **patients** (`bootstrap`, `delong`): what would other patients of the same kind show, the models as trained?
"""

from ovo_clinic.statistics.bootstrap import Bootstrap, Estimate, Interval, bootstrap_by_patient, resampled
from ovo_clinic.statistics.corrections import benjamini_hochberg, holm
from ovo_clinic.statistics.delong import auroc_interval, delong_test
from ovo_clinic.statistics.runs import (
    Comparison,
    Summary,
    corrected_resampled_t_test,
    from_summary,
    hedges_g,
    paired_effect,
    paired_t_test,
    probability_of_superiority,
    welch_t_test,
    wilcoxon_test,
)
from ovo_clinic.statistics.subsets import bootstrap_subsets
from ovo_clinic.statistics.weighted import CALIBRATION, METRICS, kind_of_task, label_metrics, weighted_metrics

__all__ = [
    "CALIBRATION",
    "METRICS",
    "Bootstrap",
    "Comparison",
    "Estimate",
    "Interval",
    "Summary",
    "auroc_interval",
    "benjamini_hochberg",
    "bootstrap_by_patient",
    "bootstrap_subsets",
    "corrected_resampled_t_test",
    "delong_test",
    "from_summary",
    "hedges_g",
    "holm",
    "kind_of_task",
    "label_metrics",
    "paired_effect",
    "paired_t_test",
    "probability_of_superiority",
    "resampled",
    "weighted_metrics",
    "welch_t_test",
    "wilcoxon_test",
]
