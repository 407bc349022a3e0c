"""FusionModel: encoders -> modality dropout -> fusion head -> output network."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ovo_clinic.errors import UserError
from ovo_clinic.registry import ENCODERS, FUSION, suggest
from ovo_clinic.settings import ModelConfig
from ovo_clinic.types import Batch, Modality, Tokens, modality_names

NamedOptions = tuple[str, Mapping[str, Any]]
"""A registered name and its options."""


class FusionModel(nn.Module):
    """One encoder per modality, one fusion head, one output network.

    Args:
        modalities: in the spec's order.
        encoders: modality -> encoder; `default` serves those that are not named.
        fusion: the head.
        dim: D, the width of every token.
        outputs: K.
        output: `hidden` = LayerNorm and one hidden layer; `linear` = one linear layer (the paper's).
        dropout: in the output network.
        modality_dropout: probability that a present modality is hidden during training; at least one is kept.

    Raises:
        UserError: an unknown name or option, by its full path, or a modality without an encoder.
    """

    def __init__(
        self,
        modalities: Sequence[Modality],
        encoders: Mapping[str, NamedOptions],
        fusion: NamedOptions,
        *,
        dim: int = 64,
        outputs: int = 1,
        output: Literal["hidden", "linear"] = "hidden",
        dropout: float = 0.1,
        modality_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.names = modality_names(modalities)
        self.modality_dropout = modality_dropout
        chosen = _encoder_choices(self.names, encoders)
        # A list, not a ModuleDict: a modality may be called `values` or `type`, which a ModuleDict refuses.
        self.encoders = nn.ModuleList(
            ENCODERS.build(name, modality, dim, options=options, path=f"model.encoders.{modality.name}")
            for modality, (name, options) in zip(modalities, chosen, strict=True)
        )
        self.fusion = FUSION.build(fusion[0], dim, modalities, options=fusion[1], path="model.fusion")
        make = partial(_output_network, hidden=dim if output == "hidden" else None, outputs=outputs, dropout=dropout)
        own = getattr(self.fusion, "output_network", None)
        self.output: nn.Module = own(make) if own else make(self.fusion.out_dim)
        self.train()  # transformers hands out models in evaluation mode, and Lightning leaves each module in its own

    def forward(self, batch: Batch) -> Tensor:
        """Logits (B,K)."""
        tokens = self.encode(batch)
        if self.training and self.modality_dropout:
            tokens = drop_modalities(tokens, self.modality_dropout)
        logits: Tensor = self.output(self.fusion(tokens))
        return logits

    def check_lengths(self, longest: Mapping[str, int]) -> None:
        """Looks whether the encoders take the longest units, before one of them is met.

        Args:
            longest: steps or tokens by modality name.

        Raises:
            UserError: an encoder is made for shorter ones.
        """
        for name, encoder in zip(self.names, self.encoders, strict=True):
            check = getattr(encoder, "check_length", None)
            if check:
                check(longest[name])

    def encode(self, batch: Batch) -> dict[str, Tokens]:
        """Tokens (B,T,D) by modality name, in the spec's order."""
        return {
            name: encode_present(encoder, batch.inputs[name], batch.masks[name])
            for name, encoder in zip(self.names, self.encoders, strict=True)
        }


def _output_network(width: int, *, hidden: int | None, outputs: int, dropout: float) -> nn.Module:
    """(B,width) -> (B,outputs): LayerNorm and one hidden layer, or a linear layer alone where `hidden` is None."""
    if hidden is None:
        return nn.Linear(width, outputs)
    layers = [nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, outputs)]
    return nn.Sequential(*layers)


def check_fusion(settings: ModelConfig, modalities: Sequence[Modality]) -> str | None:
    """Builds the head without memory for its weights, so that a mistake shows before anything is trained.

    Returns:
        Why the head is unsafe, where it is and was asked for.

    Raises:
        UserError: an unknown head or option; a combination that the head excludes; an unsafe head not allowed.
    """
    fusion = settings.fusion
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run records them
        head = FUSION.build(fusion.name, settings.dim, modalities, options=fusion.options, path="model.fusion")
    refuse_unsafe(head, settings)
    unsafe: str | None = head.unsafe
    return unsafe


def refuse_unsafe(head: Any, settings: ModelConfig) -> None:
    """Refuses a head that lets patients of one batch see each other, unless it was asked for.

    Raises:
        UserError: it was not.
    """
    if head.unsafe and not settings.allow_unsafe:
        raise UserError(
            f"model.fusion: '{settings.fusion.name}' is unsafe: {head.unsafe}; its numbers are for comparison with the "
            "published code only, ask for them with model.allow_unsafe=true"
        )


def _encoder_choices(names: Sequence[str], encoders: Mapping[str, NamedOptions]) -> list[NamedOptions]:
    """The encoder of each modality."""
    for name in encoders:
        if name != "default" and name not in names:
            raise UserError(f"model.encoders: there is no modality '{name}'{suggest(name, ['default', *names])}")
    for name in names:
        if name not in encoders and "default" not in encoders:
            raise UserError(f"model.encoders: modality '{name}' has no encoder; name one for it, or a default")
    return [encoders[name] if name in encoders else encoders["default"] for name in names]


def encode_present(encoder: nn.Module, x: Tensor, mask: Tensor) -> Tokens:
    """Encodes the rows in which the modality is present; the others are zero.

    A modality that is absent from the whole batch has its encoder run on one masked row, whose tokens are zero: every
    parameter keeps its place in the graph, which distributed training needs. That row leaves no trace in the running
    statistics of batch norm, by which present units are normed later.

    Args:
        encoder: an Encoder.
        x: (B,F), (B,T,F) or (B,C,H,W).
        mask: (B,T) bool, True = valid.
    """
    present = mask.any(dim=1)
    if present.all():
        tokens: Tokens = encoder(x, mask)
        return tokens
    anyone = bool(present.any())
    rows = present.nonzero()[:, 0] if anyone else torch.zeros(1, dtype=torch.long, device=x.device)
    with nullcontext() if anyone else _statistics_kept(encoder):
        some: Tokens = encoder(x[rows], mask[rows])
    batch = len(mask)
    values = some.values.new_zeros(batch, *some.values.shape[1:]).index_copy(0, rows, some.values)
    return Tokens(values, some.mask.new_zeros(batch, some.mask.shape[1]).index_copy(0, rows, some.mask))


@contextmanager
def _statistics_kept(encoder: nn.Module) -> Iterator[None]:
    """Batch norms use their running statistics, and do not change them."""
    learning = [module for module in encoder.modules() if isinstance(module, _BatchNorm) and module.training]
    for norm in learning:
        norm.eval()
    try:
        yield
    finally:
        for norm in learning:
            norm.train()


def drop_modalities(tokens: Mapping[str, Tokens], probability: float) -> dict[str, Tokens]:
    """Hides each present modality of each unit with a probability; at least one stays. Uses torch's generator."""
    present = torch.stack([modality.present for modality in tokens.values()], dim=1)
    draw = torch.rand(present.shape, device=present.device)
    # The present modality with the largest draw is kept: nothing changes where any present one is kept anyway.
    last = draw.masked_fill(~present, -1).argmax(dim=1, keepdim=True)
    keep = (draw >= probability).scatter(1, last, True)
    return {
        name: Tokens(modality.values * keep[:, i, None, None], modality.mask & keep[:, i, None])
        for i, (name, modality) in enumerate(tokens.items())
    }
