"""How heads fare when modalities of the test units are missing: hidden from models as they were trained.

Every head and seed has the same modalities hidden from the same units, and what is hidden at a low rate stays hidden at
a higher one, so that heads and rates are compared in pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from ovo_clinic import report
from ovo_clinic.errors import UserError
from ovo_clinic.registry import suggest
from ovo_clinic.study import Comparison
from ovo_clinic.trained import altered, over_patients
from ovo_clinic.types import Batch

if TYPE_CHECKING:
    from ovo_clinic.prepare import Prepared

Presence = NDArray[np.bool_]
"""(N,M) by cohort row and modality, in the order of the names: True = there."""

RANDOM, NATURAL, ONE = "random", "natural", "modality:"


@dataclass(frozen=True)
class Pattern:
    """What goes missing together.

    Attributes:
        name: `random` = each modality of each unit by itself; `modality:NAME` = that one; `natural` = whatever a
            training unit drawn at random lacks.
        modality: NAME; None for the other patterns.
    """

    name: str
    modality: str | None = None

    @classmethod
    def parse(cls, text: str, modalities: Sequence[str]) -> "Pattern":
        """The pattern that a user wrote.

        Raises:
            UserError: no such pattern or modality.
        """
        if text in (RANDOM, NATURAL):
            return cls(text)
        name = text.removeprefix(ONE)
        if name == text:
            raise UserError(f"--pattern: '{text}' should be random, natural or modality:NAME")
        if name not in modalities:
            raise UserError(f"--pattern: no modality '{name}'{suggest(name, list(modalities))}")
        if len(modalities) < 2:
            raise UserError(f"--pattern: {name} is the only modality; without it nothing is left")
        return cls(text, name)


def with_zero(rates: Sequence[float]) -> list[float]:
    """Rates in ascending order, 0 among them: what every other one is compared with."""
    return sorted({0.0, *rates})


def remaining(
    present: Presence, rate: float, pattern: Pattern, names: Sequence[str], *, pool: Presence, seed: int = 0
) -> Presence:
    """What is left of the modalities at a rate; a unit that has any keeps at least one.

    Args:
        present: (N,M), what is there.
        rate: the share that goes missing: of the units' modalities (random), of the units that have the modality and
            another one (modality:NAME), or of the units, which then also lack what a unit drawn from the pool lacks
            (natural).
        pattern: what goes missing together.
        names: (M,).
        pool: (P,M), what the training units have.
        seed: the same seed hides the more the higher the rate, and never less.
    """
    rng = np.random.default_rng(seed)
    if pattern.name == RANDOM:
        # A unit's last modality is the one whose turn would come last.
        turns = np.where(present, rng.random(present.shape), -1.0)
        left: Presence = present & ((turns >= rate) | (turns == turns.max(axis=1, keepdims=True)))
        return left
    struck = rng.random(len(present)) < rate
    if pattern.name == NATURAL:
        kept = present & pool[rng.integers(len(pool), size=len(present))]
    else:
        kept = present.copy()
        kept[:, list(names).index(str(pattern.modality))] = False
    # Without anything else to go by, the unit is left as it is.
    left = np.where((struck & kept.any(axis=1))[:, None], kept, present)
    return left


def presence(prepared: "Prepared", names: Sequence[str]) -> Presence:
    """(N,M) which modalities the units of the cohort have."""
    return np.column_stack([prepared.present(name) for name in names])


def hide(batch: Batch, kept: Presence, names: Sequence[str]) -> Batch:
    """The batch without what is not in `kept` (N,M), by cohort row."""
    masks, inputs = dict(batch.masks), dict(batch.inputs)
    for column, name in enumerate(names):
        there = torch.from_numpy(kept[batch.rows.numpy(), column])
        masks[name] = batch.masks[name] & there[:, None]
        shape = (-1, *[1] * (batch.inputs[name].ndim - 1))
        inputs[name] = torch.where(there.reshape(shape), batch.inputs[name], 0)
    return replace(batch, inputs=inputs, masks=masks)


def sweep(comparison: Comparison, rates: Sequence[float], pattern: Pattern, *, seed: int = 0) -> pd.DataFrame:
    """Metrics of every head on the test units at every rate, with intervals over patients.

    Args:
        comparison: finished runs.
        rates: of `with_zero`.
        pattern: what goes missing together.
        seed: of what is hidden.

    Returns:
        One row per head, rate and headline metric: model, pattern (its name), rate, hidden (share of the test units'
        modalities that were there), metric, mean over seeds, low and high (95 % interval over patients); loss (mean at
        rate 0 minus mean) and minus_first (mean minus that of the first head), each with paired bounds.
    """
    prepared = comparison.prepared
    names = prepared.chosen(comparison.results[comparison.heads[0]][0]["config"]["modalities"])
    rows = prepared.rows("test")
    there = presence(prepared, names)
    kept = {}
    for rate in rates:
        whole = there.copy()
        whole[rows] = remaining(there[rows], rate, pattern, names, pool=there[prepared.rows("train")], seed=seed)
        kept[rate] = whole
    alterations = {repr(rate): partial(hide, kept=whole, names=names) for rate, whole in kept.items()}
    found = {
        _key(head, float(rate)): values
        for head in comparison.heads
        for rate, values in altered(comparison, head, rows, alterations).items()
    }
    metrics = report.HEADLINE[prepared.manifest["kind"]]
    bootstrap = over_patients(comparison, found)
    lines = []
    for head in comparison.heads:
        for rate in rates:
            hidden = 1 - kept[rate][rows].sum() / max(1, there[rows].sum())
            for metric in metrics:
                own = bootstrap.interval(_key(head, rate), metric)
                line = {"model": head, "pattern": pattern.name, "rate": rate, "hidden": hidden, "metric": metric}
                line |= {"mean": own.estimate, "low": own.low, "high": own.high}
                loss = bootstrap.difference(_key(head, 0.0), _key(head, rate), metric)
                first = bootstrap.difference(_key(head, rate), _key(comparison.heads[0], rate), metric)
                for name, interval in (("loss", loss), ("minus_first", first)):
                    line |= {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}
                lines.append(line)
    return pd.DataFrame(lines)


def _key(head: str, rate: float) -> str:
    return f"{head} at {rate!r}"
