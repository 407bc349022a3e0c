"""Batches sliced whole from memory-mapped arrays, and the Lightning data module around them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightning
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ovo_clinic import preprocessing
from ovo_clinic.arrays import ModalityArray
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import Prepared
from ovo_clinic.preprocessing import Scaling
from ovo_clinic.types import Batch, Modality, ModalityKind

# Scaled arrays up to this size are kept in memory; larger ones are sliced from disk and scaled batch by batch.
IN_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True)
class Source:
    """One modality as a source of batches.

    Attributes:
        modality: name, kind and number of input features.
        array: as prepared.
        scaling: fitted on the training rows.
        scaled: (N or steps, F) float32 where the whole fits in memory.
    """

    modality: Modality
    array: ModalityArray
    scaling: Scaling
    scaled: Tensor | None

    @classmethod
    def of(cls, name: str, array: ModalityArray, scaling: Scaling, budget: int) -> "Source":
        """Scales the whole array at once where it fits into `budget` bytes."""
        kind: ModalityKind = "vector" if array.offsets is None else "sequence"
        fits = array.values.shape[0] * len(scaling.features) * 4 <= budget
        scaled = torch.from_numpy(scaling.apply(np.asarray(array.values))) if fits else None
        return cls(Modality(name, kind, len(scaling.features)), array, scaling, scaled)

    def slice(self, rows: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs (B,F) with mask (B,1), or (B,T,F) with mask (B,T); zero where masked."""
        present = torch.from_numpy(self.array.present[rows])
        if self.array.offsets is None:
            values = self._take(rows)
            return torch.where(present[:, None], values, 0.0), present[:, None]
        starts = self.array.offsets[rows]
        lengths = self.array.offsets[rows + 1] - starts
        steps = np.arange(max(1, int(lengths.max(initial=0))))
        mask = steps[None, :] < lengths[:, None]
        position = (starts[:, None] + steps[None, :])[mask]
        padded = torch.zeros((len(rows), steps.size, self.modality.features))
        padded[torch.from_numpy(mask)] = self._take(position)
        return padded, torch.from_numpy(mask)

    def _take(self, positions: npt.NDArray[np.int64]) -> Tensor:
        if self.scaled is not None:
            return self.scaled[torch.from_numpy(positions)]
        return torch.from_numpy(self.scaling.apply(self.array.values[positions]))


class ClinicalDataset(Dataset[Batch]):
    """Maps an array of rows to one Batch, so that nothing is ever collated row by row."""

    def __init__(self, sources: Sequence[Source], target: npt.NDArray[np.float32]) -> None:
        self.sources = list(sources)
        self._target = torch.from_numpy(target)

    def __getitem__(self, rows: Any) -> Batch:
        """The batch of the given cohort rows."""
        index = np.asarray(rows, dtype=np.int64)
        sliced = {source.modality.name: source.slice(index) for source in self.sources}
        return Batch(
            inputs={name: values for name, (values, _) in sliced.items()},
            masks={name: mask for name, (_, mask) in sliced.items()},
            target=self._target[torch.from_numpy(index)],
            rows=torch.from_numpy(index),
        )

    def __len__(self) -> int:
        """N, the number of cohort rows."""
        return len(self._target)


class BatchSampler(Sampler[npt.NDArray[np.int64]]):
    """Yields arrays of rows; the order depends on the seed and the epoch alone, so a resumed run sees the same one.

    Args:
        rows: cohort rows of the split.
        batch_size: B; the last batch may be smaller.
        seed: of the shuffle; None = ascending order, no shuffle.
        weights: chance of each row to be drawn (with replacement); None = every row once.
        rank, ranks: of this process among those that train together; each takes its share of every epoch.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.int64],
        batch_size: int,
        *,
        seed: int | None = None,
        weights: npt.NDArray[np.float64] | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._rows, self._batch_size, self._seed, self._weights = rows, batch_size, seed, weights
        self._rank, self._ranks = rank, ranks
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before every epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[npt.NDArray[np.int64]]:
        """The batches of this rank in this epoch."""
        order = self._rows
        if self._seed is not None:
            generator = np.random.default_rng([self._seed, self._epoch])
            if self._weights is None:
                order = generator.permutation(order)
            else:
                order = generator.choice(order, order.size, p=self._weights / self._weights.sum())
        share = math.ceil(order.size / self._ranks)
        # Wrapping round gives every rank the same number of batches; unequal numbers would make the ranks wait forever.
        own = np.resize(order, share * self._ranks)[self._rank :: self._ranks]
        for start in range(0, own.size, self._batch_size):
            yield own[start : start + self._batch_size]

    def __len__(self) -> int:
        """Batches of this rank in an epoch."""
        return math.ceil(math.ceil(self._rows.size / self._ranks) / self._batch_size)


class DataModule(lightning.LightningDataModule):
    """A prepared data set scaled for training.

    Args:
        prepared: the data set.
        modalities: names to use, in any order (the spec's order is kept); None = all.
        batch_size: B.
        seed: of the training order.
        balanced: draw the classes equally often (binary and multiclass tasks).
        scalings: fitted before (for new data); None = fit on the training rows.

    Raises:
        UserError: a modality that the data set does not have, or a split without labelled units.
    """

    def __init__(
        self,
        prepared: Prepared,
        modalities: Sequence[str] | None,
        *,
        batch_size: int,
        seed: int,
        balanced: bool = False,
        scalings: Mapping[str, Scaling] | None = None,
    ) -> None:
        super().__init__()
        self.prepared, self.batch_size, self._seed, self._balanced = prepared, batch_size, seed, balanced
        self.split_rows = {name: prepared.rows(name) for name in ("train", "validation", "test")}
        for name, rows in self.split_rows.items():
            if rows.size == 0:
                raise UserError(f"split: the {name} part of task '{prepared.manifest['task']}' has no labelled unit")
        self.scalings = dict(scalings or {})
        for name in prepared.chosen(modalities) if scalings is None else []:
            self.scalings[name] = preprocessing.fit(prepared.array(name), self.split_rows["train"])
        self.dataset = self._open()

    def _open(self) -> ClinicalDataset:
        budget = IN_MEMORY_BYTES // max(1, len(self.scalings))
        found = {name: self.prepared.array(name) for name in self.scalings}
        sources = [Source.of(name, found[name], scaling, budget) for name, scaling in self.scalings.items()]
        return ClinicalDataset(sources, self.prepared.target)

    def __getstate__(self) -> dict[str, Any]:
        """Without the arrays: a process that receives the module opens them itself."""
        return {name: value for name, value in self.__dict__.items() if name != "dataset"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.dataset = self._open()

    @property
    def modalities(self) -> list[Modality]:
        """What the encoders must know, in the spec's order."""
        return [source.modality for source in self.dataset.sources]

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled batches of the training rows."""
        rows = self.split_rows["train"]
        weights = None
        if self._balanced:
            _, label, counts = np.unique(self.prepared.target[rows], return_inverse=True, return_counts=True)
            weights = 1.0 / counts[label]
        trainer = self.trainer
        rank, ranks = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        sampler = BatchSampler(rows, self.batch_size, seed=self._seed, weights=weights, rank=rank, ranks=ranks)
        # A loader without a generator of its own draws from the global one, which dropout shares.
        return DataLoader(self.dataset, batch_size=None, sampler=sampler, generator=torch.Generator())

    def val_dataloader(self) -> DataLoader[Batch]:
        """The whole validation split, in order, on every rank: its metric is never an average of parts."""
        return self.loader("validation")

    def loader(self, split: str, exact_batches: bool = False) -> DataLoader[Batch]:
        """A whole split in order; in larger batches, as no gradient is kept, unless `exact_batches`."""
        size = self.batch_size if exact_batches else max(self.batch_size, 1024)
        sampler = BatchSampler(self.split_rows[split], size)
        return DataLoader(self.dataset, batch_size=None, sampler=sampler, generator=torch.Generator())
