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
from ovo_clinic.prepared import Prepared
from ovo_clinic.preprocessing import Scaling
from ovo_clinic.registry import ENCODERS
from ovo_clinic.settings import ModelConfig
from ovo_clinic.splitting import SPLITS
from ovo_clinic.types import Batch, Modality

# Scaled arrays up to this size are kept in memory; larger ones are sliced from disk and scaled batch by batch.
IN_MEMORY_BYTES = 1 << 30
# Units, and values of all their inputs together, that a batch without a gradient to keep may hold.
EVALUATION_BATCH = 1024
EVALUATION_VALUES = 1 << 24
_BUCKET_BATCHES = 32


@dataclass(frozen=True)
class Source:
    """One modality as a source of batches.

    Attributes:
        modality: name, kind and number of input features.
        array: as prepared, or as an encoder's `inputs` gives it.
        scaling: fitted on the training rows.
        scaled: (N or steps, F) float32 where the whole fits in memory.
    """

    modality: Modality
    array: ModalityArray
    scaling: Scaling
    scaled: Tensor | None

    @classmethod
    def of(cls, name: str, array: ModalityArray, scaling: Scaling, budget: int) -> "Source":
        """Scales a whole array of features at once where it fits into `budget` bytes."""
        features = array.vocabulary or len(scaling.features)
        size = (array.values.shape[-2], array.values.shape[-1]) if array.kind == "image" else None
        modality = Modality(name, array.kind, features, size)
        fits = array.kind in ("vector", "sequence") and array.values.shape[0] * features * 4 <= budget
        scaled = torch.from_numpy(scaling.apply(np.asarray(array.values))) if fits else None
        return cls(modality, array, scaling, scaled)

    def lengths(self) -> npt.NDArray[np.int64]:
        """(N,) steps or tokens of each unit; 0 for other kinds, whose size is the same in all."""
        return (
            np.zeros(len(self.array.present), np.int64) if self.array.offsets is None else np.diff(self.array.offsets)
        )

    def slice(self, rows: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs (B,F) or (B,C,H,W) with mask (B,1), (B,T,F) or (B,T) with mask (B,T); zero where masked."""
        if self.array.offsets is not None:
            return self._slice_steps(rows, self.array.offsets)
        present = torch.from_numpy(self.array.present[rows])
        if self.array.index is not None:
            return self._slice_images(self.array.index[rows], present), present[:, None]
        values = self._take(rows)
        return torch.where(present[:, None], values, 0.0), present[:, None]

    def _slice_steps(self, rows: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        starts = offsets[rows]
        lengths = offsets[rows + 1] - starts
        steps = np.arange(max(1, int(lengths.max(initial=0))))
        mask = steps[None, :] < lengths[:, None]
        values = self._take((starts[:, None] + steps[None, :])[mask])
        padded = values.new_zeros((mask.size, *values.shape[1:]))
        padded.index_copy_(0, torch.from_numpy(np.flatnonzero(mask)), values)
        return padded.view(*mask.shape, *values.shape[1:]), torch.from_numpy(mask)

    def _slice_images(self, index: npt.NDArray[np.int64], present: Tensor) -> Tensor:
        images = torch.zeros((len(index), *self.array.values.shape[1:]))
        pixels = torch.from_numpy(self.array.values[index[index >= 0]]).float()
        images[present] = pixels.sub_(self.scaling.center[0]).div_(self.scaling.scale[0])
        return images

    def _take(self, positions: npt.NDArray[np.int64]) -> Tensor:
        if self.scaled is not None:
            return self.scaled.index_select(0, torch.from_numpy(positions))
        values = self.array.values[positions]
        return torch.from_numpy(values.astype(np.int64) if self.array.kind == "text" else self.scaling.apply(values))


def model_inputs(prepared: Prepared, names: Sequence[str], settings: ModelConfig) -> dict[str, ModalityArray]:
    """What each modality's encoder is fed: the prepared array, or what the encoder makes of the modality.

    Raises:
        UserError: an unknown encoder or option, a checkpoint or file that an encoder cannot read, or a text whose
            encoder takes none.
    """
    return {name: _encoder_input(prepared, name, settings) for name in names}


def _encoder_input(prepared: Prepared, name: str, settings: ModelConfig) -> ModalityArray:
    choice = settings.encoder(name)
    path = f"model.encoders.{name}"
    encoder: Any = ENCODERS.get(choice.name, path)
    if hasattr(encoder, "inputs"):
        array: ModalityArray = encoder.inputs(name, prepared, ENCODERS.options(choice.name, choice.options, path))
        return array
    if prepared.manifest["modalities"][name]["kind"] == "text":
        able = [other for other in ENCODERS.names() if getattr(ENCODERS.get(other), "takes_text", False)]
        raise UserError(f"{path}: '{choice.name}' takes no text; choose {' or '.join(able) or 'other modalities'}")
    return prepared.array(name)


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

    def lengths(self) -> npt.NDArray[np.int64]:
        """(N,) steps and tokens of each unit, over all modalities."""
        total: npt.NDArray[np.int64] = np.stack([source.lengths() for source in self.sources]).sum(axis=0)
        return total

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
        lengths: (N,) of all cohort rows; shuffled rows of like length then share a batch, which saves padding.
        rank, ranks: of this process among those that train together; each takes its share of every epoch.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.int64],
        batch_size: int,
        *,
        seed: int | None = None,
        weights: npt.NDArray[np.float64] | None = None,
        lengths: npt.NDArray[np.int64] | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._rows, self._batch_size, self._seed, self._weights = rows, batch_size, seed, weights
        self._lengths, self._rank, self._ranks = lengths, rank, ranks
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before every epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[npt.NDArray[np.int64]]:
        """The batches of this rank in this epoch."""
        generator = None if self._seed is None else np.random.default_rng([self._seed, self._epoch])
        order = self._rows if generator is None else self._drawn(generator)
        share = math.ceil(order.size / self._ranks)
        # Wrapping round gives every rank the same number of batches; unequal numbers would make the ranks wait forever.
        own = np.resize(order, share * self._ranks)[self._rank :: self._ranks]
        if generator is not None and self._lengths is not None:
            own = self._bucketed(own, self._lengths)
        starts = np.arange(0, own.size, self._batch_size)
        if generator is not None and self._lengths is not None:
            starts = generator.permutation(starts)
        for start in starts:
            yield own[start : start + self._batch_size]

    def _drawn(self, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        if self._weights is None:
            return generator.permutation(self._rows)
        return generator.choice(self._rows, self._rows.size, p=self._weights / self._weights.sum())

    def _bucketed(self, rows: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows, each few batches of them in the order of their lengths."""
        cuts = np.arange(_BUCKET_BATCHES * self._batch_size, rows.size, _BUCKET_BATCHES * self._batch_size)
        return np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in np.split(rows, cuts)])

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
        length_buckets: units of like length share a training batch.
        exact_batches: held-out parts come in batches of the training's size, too, for heads in which units of a batch
            see each other.
        scalings: fitted before (for new data); None = fit on the training rows.
        arrays: from `model_inputs`; None = as prepared.
        splits: the parts that are used; the labels of others are not even looked at.

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
        length_buckets: bool = False,
        exact_batches: bool = False,
        scalings: Mapping[str, Scaling] | None = None,
        arrays: Mapping[str, ModalityArray] | None = None,
        splits: Sequence[str] = SPLITS,
    ) -> None:
        super().__init__()
        self.prepared, self.batch_size, self._seed, self._balanced = prepared, batch_size, seed, balanced
        self._length_buckets, self._exact_batches = length_buckets, exact_batches
        self.split_rows = {name: prepared.rows(name) for name in splits}
        for name, rows in self.split_rows.items():
            if rows.size == 0:
                raise UserError(f"split: the {name} part of task '{prepared.manifest['task']}' has no labelled unit")
        names = prepared.chosen(modalities)
        self._arrays = {name: arrays[name] if arrays is not None else prepared.array(name) for name in names}
        if scalings is None:
            scalings = {name: preprocessing.fit(self._arrays[name], self.split_rows["train"]) for name in names}
        self.scalings = dict(scalings)
        self.dataset = self._open()

    def _open(self) -> ClinicalDataset:
        budget = IN_MEMORY_BYTES // max(1, len(self.scalings))
        sources = [Source.of(name, self._arrays[name], scaling, budget) for name, scaling in self.scalings.items()]
        return ClinicalDataset(sources, self.prepared.target)

    def __getstate__(self) -> dict[str, Any]:
        """Without the scaled values: a process that receives the module makes them from the arrays' files itself."""
        return {name: value for name, value in self.__dict__.items() if name != "dataset"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.dataset = self._open()

    @property
    def held_out(self) -> list[str]:
        """Names of the parts that are evaluated on."""
        return [name for name in self.split_rows if name != "train"]

    @property
    def modalities(self) -> list[Modality]:
        """What the encoders must know, in the spec's order."""
        return [source.modality for source in self.dataset.sources]

    def reference(self, units: int) -> Batch:
        """The first training units with the most modalities, on which costs are those of units that have everything."""
        rows = self.split_rows["train"]
        there = np.sum([source.array.present[rows] for source in self.dataset.sources], axis=0)
        return self.dataset[rows[np.argsort(-there, kind="stable")[:units]]]

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled batches of the training rows."""
        rows = self.split_rows["train"]
        weights = None
        if self._balanced:
            _, label, counts = np.unique(self.prepared.target[rows], return_inverse=True, return_counts=True)
            weights = 1.0 / counts[label]
        lengths = self.dataset.lengths() if self._length_buckets else None
        trainer = self.trainer
        rank, ranks = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        sampler = BatchSampler(
            rows, self.batch_size, seed=self._seed, weights=weights, lengths=lengths, rank=rank, ranks=ranks
        )
        # A loader without a generator of its own draws from the global one, which dropout shares.
        return DataLoader(self.dataset, batch_size=None, sampler=sampler, generator=torch.Generator())

    def val_dataloader(self) -> DataLoader[Batch]:
        """The whole validation split, in order, on every rank: its metric is never an average of parts."""
        return self.loader("validation")

    def loader(self, split: str) -> DataLoader[Batch]:
        """A whole split in order; in larger batches, as no gradient is kept, unless `exact_batches`."""
        sampler = BatchSampler(self.split_rows[split], self.evaluation_batch)
        return DataLoader(self.dataset, batch_size=None, sampler=sampler, generator=torch.Generator())

    @property
    def evaluation_batch(self) -> int:
        """Units of a batch without a gradient to keep: as many as there is room for, unless `exact_batches`."""
        return self.batch_size if self._exact_batches else evaluation_batch(self.dataset.sources, self.batch_size)

    def longest(self) -> dict[str, int]:
        """Steps or tokens of the longest unit of the parts that are used, by modality; 0 for other kinds."""
        rows = np.concatenate(list(self.split_rows.values()))
        return {source.modality.name: int(source.lengths()[rows].max(initial=0)) for source in self.dataset.sources}


def evaluation_batch(sources: Sequence[Source], least: int) -> int:
    """Units of a batch without a gradient to keep: as many as there is room for, `least` or more.

    Args:
        sources: of the batches.
        least: units of a training batch.
    """
    if {source.modality.kind for source in sources} & {"image", "text"}:
        return least  # their layers are large: only the size of training is known to fit
    values = sum(source.modality.features * int(source.lengths().max(initial=1)) for source in sources)
    return max(least, min(EVALUATION_BATCH, EVALUATION_VALUES // max(1, values)))
