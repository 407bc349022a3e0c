"""ovo_clinic: from raw clinical files to a sound, tracked comparison of multimodal fusion methods.

The package makes no network connection by itself: model hubs are switched off and the telemetry of every library is
silenced before any of them is imported.
"""

import os

__version__ = "0.1.0"

OFFLINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
for _name, _value in OFFLINE_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
