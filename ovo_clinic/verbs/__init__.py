"""The commands as Python functions, for notebooks and for the command line.

from ovo_clinic.verbs import compare
study = compare("eicu_mortality_24h", raw="eicu-demo", fusion=["concat", "ovo"], seeds=3)
study.table.rows
"""

from ovo_clinic.audit import audit
from ovo_clinic.verbs.picturing import heat_maps
from ovo_clinic.verbs.pretraining import Pretrained, pretrain_text
from ovo_clinic.verbs.search import Search, tune
from ovo_clinic.verbs.single_run import Run, train
from ovo_clinic.verbs.study import Study, compare, write_report
from ovo_clinic.verbs.synthetic_study import SyntheticStudy, demo, oracle_auroc

__all__ = [
    "Pretrained",
    "Run",
    "Search",
    "Study",
    "SyntheticStudy",
    "audit",
    "compare",
    "demo",
    "heat_maps",
    "oracle_auroc",
    "pretrain_text",
    "train",
    "tune",
    "write_report",
]
