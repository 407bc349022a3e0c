"""LSTM encoder of time series."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ovo_clinic.errors import UserError
from ovo_clinic.registry import ENCODERS
from ovo_clinic.types import Modality, Tokens


@ENCODERS.register("lstm")
class Lstm(nn.Module):
    """LSTM over the valid steps of a time series: the state after the last one, or one token a step.

    Sequences are packed, so that no state ever passes through padding; a masked step between valid ones is passed over.

    Args:
        modality: a sequence.
        dim: D, the width of the tokens.
        layers: LSTMs on top of each other.
        width: of the state, in each direction.
        dropout: between layers and before the output.
        bidirectional: also reads from the last valid step to the first.
        output: `last` = one token, the state after the last valid step (of the other direction, after the first);
            `tokens` = one a step.

    Source:
        Hochreiter and Schmidhuber 1997.

    Raises:
        UserError: the modality is no sequence.
    """

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        layers: Literal[1, 2, 3, 4] = 1,
        width: Annotated[int, Field(ge=1)] = 64,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        bidirectional: bool = False,
        output: Literal["last", "tokens"] = "last",
    ) -> None:
        super().__init__()
        if modality.kind != "sequence":
            raise UserError(f"encoder: lstm takes sequences, and {modality.name} is of kind {modality.kind}")
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(
            modality.features, width, layers, batch_first=True, dropout=between, bidirectional=bidirectional
        )
        self.directions = 2 if bidirectional else 1
        self.last = output == "last"
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width * self.directions, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,T,F) with mask (B,T), True = valid, into Tokens (B,1,D), or (B,T,D) for `output: tokens`."""
        present = mask.any(dim=1, keepdim=True)
        order = None if _only_ends_masked(mask) else (~mask).long().argsort(dim=1, stable=True)
        x = x.masked_fill(~mask[..., None], 0)
        if order is not None:
            x = x.gather(1, order[..., None].expand_as(x))
        states, final = self._run(x, mask.sum(dim=1))
        if self.last:
            values = final[-self.directions :].movedim(0, 1).flatten(1)[:, None]
            mask = present
        elif order is not None:
            values = torch.zeros_like(states).scatter(1, order[..., None].expand_as(states), states)
        else:
            values = states
        return Tokens(self.out(self.dropout(values)).masked_fill(~mask[..., None], 0), mask)

    def _run(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """States (B,T,width * directions) and the final ones (layers * directions, B, width) over the first steps."""
        steps = x.shape[1]
        if (lengths == steps).all():  # nothing to leave out: the kernel for whole batches is faster
            states, (final, _) = self.lstm(x)
            return states, final
        # An absent unit runs over one step of zeros, as a sequence of no step cannot be packed; it is masked later.
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        states, (final, _) = self.lstm(packed)
        return pad_packed_sequence(states, batch_first=True, total_length=steps)[0], final


def _only_ends_masked(mask: Tensor) -> bool:
    """Whether every unit's valid steps come first."""
    return not bool((mask[:, 1:] & ~mask[:, :-1]).any())
