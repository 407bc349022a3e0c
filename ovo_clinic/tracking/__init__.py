"""Every MLflow call of the project.

Layout in the store: one experiment per task; in it one run per fusion head with the summary over seeds, so that the UI
compares heads; the seeds as its child runs; and one `study` run with table, figures, attrition and the machine's load
meanwhile. All carry the tag `study`. The best network by validation, and the best baseline, are kept as MLflow models
of their seeds' runs. Only aggregates are stored: no unit, no patient, no prediction.
"""

import os

from ovo_clinic.tracking.addresses import database_uri, permitted, tracking_uri, without_credentials
from ovo_clinic.tracking.machine import machine_load
from ovo_clinic.tracking.models import check_name
from ovo_clinic.tracking.pages import serve
from ovo_clinic.tracking.store import Store

# MLflow's own progress bars, one for every file, and its addresses of every run would stand between our lines.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

__all__ = [
    "Store",
    "check_name",
    "database_uri",
    "machine_load",
    "permitted",
    "serve",
    "tracking_uri",
    "without_credentials",
]
