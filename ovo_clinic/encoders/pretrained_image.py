"""Encoder of images on a transformers model from a local folder, fine-tuned or frozen."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.modules.batchnorm import _BatchNorm

from ovo_clinic import derived
from ovo_clinic.arrays import Column, ModalityArray
from ovo_clinic.attention.hf import use_attention
from ovo_clinic.encoders.checkpoints import Output, check_kind, checkpoint_folder, embedded, load_model
from ovo_clinic.errors import UserError
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import ENCODERS
from ovo_clinic.types import Modality, Tokens

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
"""Mean and standard deviation of red, green and blue; what most checkpoints were trained with."""

_IMAGES_AT_ONCE = 32


@ENCODERS.register("pretrained_image")
class PretrainedImage(nn.Module):
    """Image encoder from a local checkpoint (ViT, DINOv2, Swin, ResNet, any AutoModel), fine-tuned or frozen.

    Images are brought to the size that the checkpoint says it takes, grey ones to as many equal channels. A frozen
    model sees intensities scaled as its checkpoint says, and runs once: what it gives is kept beside the prepared data,
    and only the layer to the width D is trained. A fine-tuned one sees intensities scaled by the training images, and
    its batch norms keep the statistics of the checkpoint, as a small batch may hold few images.

    Args:
        modality: an image, or what the frozen model made of it.
        dim: D, the width of the tokens that are given out.
        checkpoint: folder of the model.
        frozen: the model's weights stay as they are.
        output: `cls` = the first token, of models that have one; `mean` = the mean over all; `tokens` = all, of
            patches or positions.
        attention: `sdpa`, `eager`, `preconditioned`, ...: see attention/hf.py; default: what transformers chooses.

    Raises:
        UserError: no image, a checkpoint that is missing or damaged or takes no such images, or an attention that does
            not fit.
    """

    files = ("checkpoint",)

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        checkpoint: str,
        frozen: bool = False,
        output: Output = "mean",
        attention: str | None = None,
    ) -> None:
        super().__init__()
        check_kind("pretrained_image", modality, "image", frozen)
        self.model = None if frozen else _model(checkpoint_folder(checkpoint), modality.features, attention)
        self.output = output
        width = modality.features if self.model is None else _shape(self.model, output)[1]
        self.out = nn.Linear(width, dim)

    def train(self, mode: bool = True) -> "PretrainedImage":
        """Training or evaluation mode; batch norms stay in the latter."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self

    @classmethod
    def inputs(cls, name: str, prepared: Prepared, options: Mapping[str, Any]) -> ModalityArray:
        """The images, or with `frozen: true` the model's embeddings of them, made once.

        Raises:
            UserError: no image, or a checkpoint that is missing or damaged or takes no such images.
        """
        kind = prepared.manifest["modalities"][name]["kind"]
        if kind != "image":
            raise UserError(f"model.encoders.{name}: pretrained_image takes images, and {name} is of kind {kind}")
        images, folder = prepared.array(name), checkpoint_folder(options["checkpoint"])
        if not options["frozen"]:
            return images
        chosen = {option: options[option] for option in ("output", "attention")}
        identity = {"checkpoint": derived.files_digest(folder), **chosen}
        return derived.cached(prepared, name, identity, partial(embeddings, images, folder, **chosen))

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,C,H,W) with mask (B,1), True = valid, into Tokens (B,1,D), or (B,T,D) for `output: tokens`.

        With `frozen: true`, x holds embeddings, (B,F) with mask (B,1) or (B,T,F) with mask (B,T).
        """
        if self.model is not None:
            values = _states(self.model, torch.where(mask[..., None, None], x, 0), self.output)
            mask = mask.expand(-1, values.shape[1])
        else:
            values = embedded(x, mask)
        return Tokens(self.out(values).masked_fill(~mask[..., None], 0), mask)


def embeddings(images: ModalityArray, folder: Path, output: Output, attention: str | None) -> ModalityArray:
    """What a frozen model makes of images: one row each (float32), or one row a token (float16)."""
    assert images.index is not None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = _model(folder, images.values.shape[1], attention).to(device).eval()
    mean, deviation = (values.to(device) for values in _intensities(folder, model.config.num_channels))
    rows = np.flatnonzero(images.present)
    each, width = _shape(model, output)
    dtype = np.float16 if output == "tokens" else np.float32
    found = np.zeros((len(rows), each, width), dtype)
    for start in range(0, len(rows), _IMAGES_AT_ONCE):
        part = images.index[rows[start : start + _IMAGES_AT_ONCE]]
        with torch.inference_mode():
            pixels = torch.from_numpy(images.values[part]).to(device).float() / 255
            states = _states(model, (_channels(model, pixels) - mean) / deviation, output)
        found[start : start + len(part)] = states.cpu().numpy()
    columns = [Column(f"embedding {index}", "numeric", f"embedding {index}") for index in range(width)]
    if output == "tokens":
        offsets = np.concatenate([[0], np.cumsum(images.present * each)])
        return ModalityArray(columns, found.reshape(-1, width), images.present, offsets, kind="sequence")
    values = np.zeros((len(images.present), width), dtype)
    values[rows] = found[:, 0]
    return ModalityArray(columns, values, images.present)


def _model(folder: Path, channels: int, attention: str | None) -> Any:
    """The model of a checkpoint, checked to take images of so many channels."""
    model = load_model(folder)
    if model.main_input_name != "pixel_values":
        raise UserError(f"checkpoint: {folder} is a {type(model).__name__}, which takes more or other than images")
    if channels not in (1, model.config.num_channels):
        raise UserError(
            f"checkpoint: {folder} takes images of {model.config.num_channels} channels, and these have {channels}"
        )
    if attention is not None:
        use_attention(model, attention)
    return model


def _intensities(folder: Path, channels: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (1,C,1,1) by which the checkpoint wants intensities from 0 to 1 scaled."""
    path = folder / "preprocessor_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    mean, deviation = IMAGENET if channels == len(IMAGENET[0]) else (0.5, 0.5)
    given = settings.get("image_mean", mean), settings.get("image_std", deviation)
    if settings.get("do_normalize") is False:  # a processor writes down the mean that it does not use, too
        given = 0.0, 1.0
    return torch.tensor(given[0]).view(1, -1, 1, 1), torch.tensor(given[1]).view(1, -1, 1, 1)


def _shape(model: Any, output: Output) -> tuple[int, int]:
    """How many tokens an image gives, and their width."""
    blank = torch.zeros(1, model.config.num_channels, *_size(model, (64, 64)), device=model.device)
    with torch.no_grad():
        _, tokens, width = _states(model, blank, output).shape
    return tokens, width


def _size(model: Any, otherwise: tuple[int, int]) -> tuple[int, int]:
    """Height and width that the model takes; models without patches take any."""
    size = getattr(model.config, "image_size", None) or otherwise
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _channels(model: Any, x: Tensor) -> Tensor:
    return x.expand(-1, model.config.num_channels, -1, -1)


def _states(model: Any, x: Tensor, output: Output) -> Tensor:
    """What a model makes of images (B,C,H,W): (B,T,F), or (B,1,F) of a whole image."""
    size = _size(model, (x.shape[-2], x.shape[-1]))
    if x.shape[-2:] != size:
        # In float32, as there is no such operation in bfloat16.
        x = interpolate(x.float(), size, mode="bilinear", align_corners=False, antialias=True).to(x.dtype)
    states: Tensor = model(pixel_values=_channels(model, x)).last_hidden_state
    if states.ndim == 4:  # convolutional: channels, rows, columns
        states = states.flatten(2).mT
        if output == "cls":
            raise UserError(f"output: cls: a {type(model).__name__} has no such token; choose mean or tokens")
    if output == "tokens":
        return states
    return states[:, :1] if output == "cls" else states.mean(dim=1, keepdim=True)
