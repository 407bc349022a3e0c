"""What the heads of a finished study cost, beside how well they do."""

from functools import partial

import numpy as np
import pandas as pd
import torch

from ovo_clinic.measure import latencies
from ovo_clinic.model import FusionModel
from ovo_clinic.study import Comparison
from ovo_clinic.trained import Trained
from ovo_clinic.types import Batch

BATCH = 128


def cost_table(comparison: Comparison) -> pd.DataFrame:
    """Multiply-accumulates, parameters and latency of every head.

    Returns:
        One row per head: model, macs (per sample), parameters, milliseconds (of a forward pass of BATCH test units on
        one CPU thread; median, with the load of this machine in it).
    """
    rows = np.resize(comparison.prepared.rows("test"), BATCH)
    calls, lines = [], []
    for head in comparison.heads:
        costs = comparison.results[head][0]["costs"]
        lines.append({"model": head, "macs": costs["macs_total"], "parameters": costs["parameters"]})
        trained = Trained(comparison.run_folders[head][0], comparison.prepared)
        calls.append(partial(_forward, trained.model, trained.data.dataset[rows]))
    return pd.DataFrame(lines).assign(milliseconds=[1e3 * took for took in latencies(calls)])


@torch.inference_mode()
def _forward(model: FusionModel, batch: Batch) -> torch.Tensor:
    logits: torch.Tensor = model(batch)
    return logits
