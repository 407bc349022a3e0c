"""Late fusion: every modality predicts by itself, and the predictions are averaged."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ovo_clinic.fusion.tokens import Count, ModalityTokens, mean_present, mean_tokens
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens


class AveragedLogits(nn.Module):
    """An output network for each modality, and the mean of the logits of those that are present.

    Args:
        networks: one per modality, (B,D) -> (B,K).
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, fused: Tensor) -> Tensor:
        """What `Late` gives, (B,M*D+M) -> logits (B,K), zero where nothing is present."""
        modalities = len(self.networks)
        vectors, present = fused[:, :-modalities].chunk(modalities, dim=1), fused[:, -modalities:] > 0
        logits = [network(vector) for network, vector in zip(self.networks, vectors, strict=True)]
        return mean_present(torch.stack(logits, dim=1), present)


@FUSION.register("late")
class Late(nn.Module):
    """Late fusion: every modality has its own output network, and the logits of the present ones are averaged.

    The modalities are trained together, by the loss of the averaged logits, and meet nowhere before: what one adds to
    the prediction does not depend on what another shows, and no interaction between them can be learned.

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality, the same for every head of a comparison.

    Source:
        The mean rule of Kittler et al. 1998, On Combining Classifiers, on logits instead of probabilities.
    """

    unsafe: str | None = None

    def __init__(self, dim: int, modalities: Sequence[Modality], *, tokens: Count = 4) -> None:
        super().__init__()
        self.dim, self.modalities = dim, len(modalities)
        self.out_dim = len(modalities) * (dim + 1)
        self.tokens = ModalityTokens(dim, modalities, tokens)

    def output_network(self, make: Callable[[int], nn.Module]) -> nn.Module:
        """The output network of the model, in place of the usual one over the whole fused vector.

        Args:
            make: the usual one over a vector of the given width.
        """
        return AveragedLogits([make(self.dim) for _ in range(self.modalities)])

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M*D+M): the modalities side by side, then which ones are present."""
        x, present = self.tokens(tokens)
        return torch.cat([mean_tokens(x, present).flatten(1), present.to(x.dtype)], dim=1)
