"""The types that every part of the package shares.

Axis letters, used in every docstring:

    B  batch            M  modalities        T  tokens of one modality    n  tokens per modality after tokens.py
    N  rows or tokens   F  input features    D  width                     H  heads        d  D / H
    K  outputs          C  channels of an image          (H,W) its size in pixels, where it stands beside C

A mask is boolean and **True means valid**. Padding, a missing time step and an absent modality are one concept: a row
whose mask is all False is an absent modality, so presence is `mask.any(1)` and never a second field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

ModalityKind = Literal["vector", "sequence", "image", "text"]


@dataclass(frozen=True)
class Modality:
    """What an encoder must know of its input.

    Attributes:
        name: the modality's name in the data spec.
        kind: `vector` for one row of features a unit, x (B,F) with mask (B,1); `sequence` for time steps, x (B,T,F)
            with mask (B,T); `image` for one image a unit, x (B,C,H,W) with mask (B,1); `text` for token ids, x (B,T)
            int64 with mask (B,T).
        features: F, the number of input features, an image's channels C, or the size of a text's vocabulary.
        size: (H,W) of an image in pixels; None for all else.
    """

    name: str
    kind: ModalityKind
    features: int
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Tokens:
    """An encoder's output for one modality.

    Attributes:
        values: (B,T,D), zero where masked.
        mask: (B,T) bool, True = valid; a row of all False = modality absent.
    """

    values: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        assert self.values.ndim == 3 and self.mask.shape == self.values.shape[:2], (self.values.shape, self.mask.shape)
        assert self.mask.dtype == torch.bool, self.mask.dtype

    @property
    def present(self) -> Tensor:
        """(B,) bool, True where the modality has at least one valid token."""
        return self.mask.any(dim=1)


@dataclass(frozen=True)
class Batch:
    """Whole rows sliced from the prepared arrays.

    Attributes:
        inputs: by modality name, (B,F), (B,T,F) or (B,C,H,W), scaled and imputed, or token ids (B,T) int64; zero where
            masked.
        masks: by modality name, (B,T) bool, True = valid (T = 1 for a vector or an image).
        target: (B,) class index or 0/1, or (B,K); NaN = not labelled.
        rows: (B,) int64, row of the cohort table.
    """

    inputs: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    target: Tensor
    rows: Tensor

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(
            inputs={name: value.to(device, non_blocking=True) for name, value in self.inputs.items()},
            masks={name: value.to(device, non_blocking=True) for name, value in self.masks.items()},
            target=self.target.to(device, non_blocking=True),
            rows=self.rows.to(device, non_blocking=True),
        )


class Encoder(Protocol):
    """`__init__(self, modality: Modality, dim: int, *, options)`; a registered `nn.Module`.

    A class may define `inputs(cls, name: str, prepared: Prepared, options: Mapping[str, Any]) -> ModalityArray`, a
    classmethod that says what the encoder is fed instead of the prepared array of modality `name`: token ids, a frozen
    model's embeddings, embeddings from a file. `options` are its resolved keyword options; `derived.cached` keeps what
    is costly. One that reads texts needs it, and says so by a class attribute `takes_text = True`. A class attribute
    `files` names the options that are paths of files whose content decides the result (a checkpoint); `of_rows = True`
    says that they hold rows of units, which a model never carries. A method `check_length(self, steps: int) -> None`
    refuses units of so many steps or tokens, where it takes no longer ones, and a classmethod `check_data`, which takes
    what `inputs` takes, data that it should not be trained on; both are asked before anything is trained.
    """

    def __call__(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,F), (B,T,F), (B,C,H,W) or (B,T) with mask (B,T), True = valid, into Tokens (B,T',D)."""
        ...


class FusionHead(Protocol):
    """`__init__(self, dim: int, modalities: Sequence[Modality], *, options)`; a registered `nn.Module`.

    A class may define `output_network(self, make: Callable[[int], nn.Module]) -> nn.Module`, which gives the network
    from fused vector to logits in place of `make(out_dim)`; see `late`.

    Attributes:
        out_dim: width of the fused vector.
    """

    out_dim: int

    def __call__(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Fuses the modalities' tokens into (B,out_dim); a modality that is not in `tokens` is absent."""
        ...


class AttentionCore(Protocol):
    """`__init__(self, heads: int, head_dim: int, *, options)`; a registered `nn.Module`.

    Attributes:
        paired_tokens: needs Nq = Nk, with query token i belonging to key token i.
        fixed_length: learned weights belong to key positions, so the number of key tokens is fixed (an option).
        position_dependent: permuting key tokens (with their masks) changes the output.
    """

    paired_tokens: bool
    fixed_length: bool
    position_dependent: bool

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """q (B,H,Nq,d), k and v (B,H,Nk,d), masks (B,N) with True = valid -> (B,H,Nq,d).

        A row whose keys are all masked, and a masked query's row, is 0 and never NaN. `scale` defaults to d^-1/2.
        """
        ...


class Task(Protocol):
    """What is predicted: turns logits into a loss, probabilities and metrics.

    Attributes:
        outputs: K, the width of the logits.
        monitor: name of the validation metric that selects the best epoch; higher is better.
    """

    outputs: int
    monitor: str

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean loss over labelled entries; logits (B,K), target (B,) or (B,K) with NaN = not labelled."""
        ...

    def predict(self, logits: Tensor) -> Tensor:
        """Probabilities, (B,) for a binary task, else (B,K)."""
        ...

    def metrics(self, probabilities: Any, target: Any) -> dict[str, float]:
        """Metrics over a whole split (numpy arrays), never averaged over batches."""
        ...


def modality_names(modalities: Sequence[Modality]) -> list[str]:
    """Names in the spec's order, the order of every concatenation."""
    return [modality.name for modality in modalities]


def parameter_count(module: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
