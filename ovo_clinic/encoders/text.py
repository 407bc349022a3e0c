"""Encoder of texts on a transformers model from a local folder, fine-tuned or frozen."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from pydantic import Field
from torch import Tensor, nn

from ovo_clinic import derived
from ovo_clinic.arrays import Column, ModalityArray
from ovo_clinic.attention.hf import use_attention
from ovo_clinic.encoders.checkpoints import (
    TRAINED_ATTENTION,
    Output,
    check_kind,
    checkpoint_folder,
    embedded,
    is_of_another_split,
    load_config,
    load_model,
    load_tokenizer,
    pretrained_on,
)
from ovo_clinic.errors import UserError
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import ENCODERS
from ovo_clinic.types import Modality, Tokens

_TEXTS_AT_ONCE = 1024
_TOKENS_AT_ONCE = 8192


@ENCODERS.register("text")
class Text(nn.Module):
    """Text encoder from a local checkpoint (ClinicalBERT, any AutoModel), fine-tuned or frozen.

    Texts are cut off after `max_tokens`, and tokenised once. A frozen model also runs once: what it gives is kept
    beside the prepared data, and only the layer to the width D is trained. A fine-tuned one learns at
    `training.learning_rate`, for which 2e-5 is usual.

    Args:
        modality: a text, or what the frozen model made of it.
        dim: D, the width of the tokens that are given out.
        checkpoint: folder of the model with its tokenizer.
        frozen: the model's weights stay as they are.
        output: `cls` = the state of the first token; `mean` = the mean over all; `tokens` = one a token of the text.
        max_tokens: of a text, special ones included; fewer where the model reads no more.
        attention: `sdpa`, `eager`, `preconditioned`, ...: see attention/hf.py; default: that of `pretrain-text`, and
            for other checkpoints what transformers chooses.

    Raises:
        UserError: no text, a checkpoint that is missing or damaged, or an attention that does not fit.
    """

    takes_text = True
    files = ("checkpoint",)

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        checkpoint: str,
        frozen: bool = False,
        output: Output = "cls",
        max_tokens: Annotated[int, Field(ge=2)] = 512,
        attention: str | None = None,
    ) -> None:
        super().__init__()
        check_kind("text", modality, "text", frozen)
        self.model = None if frozen else _model(checkpoint_folder(checkpoint), attention)
        self.output = output
        self.out = nn.Linear(modality.features if self.model is None else self.model.config.hidden_size, dim)

    @classmethod
    def check_data(cls, name: str, prepared: Prepared, options: Mapping[str, Any]) -> None:
        """Refuses a checkpoint that may have read the notes of test patients.

        Raises:
            UserError: `pretrain-text` made it of the training units of another split.
        """
        folder = checkpoint_folder(options["checkpoint"])
        origin = pretrained_on(folder)
        if origin is not None and is_of_another_split(origin, prepared):
            raise UserError(
                f"model.encoders.{name}.checkpoint: {folder} was pretrained on training units of task "
                f"'{origin['task']}' in another split, among whom may be this one's test patients; run pretrain-text "
                "with this task, its split and its fold"
            )

    @classmethod
    def inputs(cls, name: str, prepared: Prepared, options: Mapping[str, Any]) -> ModalityArray:
        """Token ids, or with `frozen: true` the model's embeddings, made once.

        Raises:
            UserError: no text, or a checkpoint that is missing, damaged, or pretrained on another split.
        """
        kind = prepared.manifest["modalities"][name]["kind"]
        if kind != "text":
            raise UserError(f"model.encoders.{name}: text takes texts, and {name} is of kind {kind}")
        cls.check_data(name, prepared, options)
        folder = checkpoint_folder(options["checkpoint"])
        identity = {"checkpoint": derived.files_digest(folder), "max_tokens": options["max_tokens"]}
        texts = prepared.texts(name)
        tokens = derived.cached(prepared, name, identity, partial(token_ids, texts, folder, options["max_tokens"]))
        if not options["frozen"]:
            return tokens
        chosen = {option: options[option] for option in ("output", "attention")}
        return derived.cached(prepared, name, identity | chosen, partial(embeddings, tokens, folder, **chosen))

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes token ids (B,T) with mask (B,T), True = valid, into Tokens (B,1,D), or (B,T,D) for `output: tokens`.

        With `frozen: true`, x holds embeddings, (B,F) with mask (B,1) or (B,T,F) with mask (B,T).
        """
        if self.model is not None:
            values, mask = _read(self.model, x, mask, self.output)
        else:
            values = embedded(x, mask)
        return Tokens(self.out(values).masked_fill(~mask[..., None], 0), mask)


def token_ids(texts: pl.Series, folder: Path, max_tokens: int) -> ModalityArray:
    """Token ids of texts (N,), null = absent, by the tokenizer of a checkpoint."""
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    if len(tokenizer) > config.vocab_size:
        raise UserError(
            f"checkpoint: {folder} has a tokenizer of {len(tokenizer)} tokens and a model of {config.vocab_size}; "
            "they do not belong together"
        )
    present = texts.is_not_null().to_numpy()
    length = min(max_tokens, tokenizer.model_max_length, _positions(config))
    found: list[list[int]] = []
    for part in texts.drop_nulls().to_frame().iter_slices(_TEXTS_AT_ONCE):
        found += tokenizer(part.to_series().to_list(), truncation=True, max_length=length)["input_ids"]
    lengths = np.zeros(len(texts), dtype=np.int64)
    lengths[present] = [len(ids) for ids in found]
    values = np.fromiter((token for ids in found for token in ids), dtype=np.int32, count=int(lengths.sum()))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return ModalityArray([], values, present, offsets, kind="text", vocabulary=int(config.vocab_size))


def _positions(config: Any) -> int:
    """How many tokens a model has positions for; RoBERTa's count from the number of its padding token."""
    positions = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
    shifted = config.model_type in ("roberta", "xlm-roberta", "camembert", "longformer")
    return positions - config.pad_token_id - 1 if shifted else positions


def embeddings(tokens: ModalityArray, folder: Path, output: Output, attention: str | None) -> ModalityArray:
    """What a frozen model makes of token ids: one row a text (float32), or one a token (float16)."""
    assert tokens.offsets is not None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = _model(folder, attention).to(device).eval()
    width = int(model.config.hidden_size)
    each = output == "tokens"
    values = np.zeros((len(tokens.values) if each else len(tokens.present), width), np.float16 if each else np.float32)
    for rows in _batches(np.diff(tokens.offsets)):
        ids, mask, places = _padded(tokens.values, tokens.offsets, rows)
        with torch.inference_mode():
            read, _ = _read(model, ids.to(device), mask.to(device), output)
        if each:
            values[places[mask.numpy()]] = read.cpu().numpy()[mask.numpy()]
        else:
            values[rows] = read[:, 0].cpu().numpy()
    columns = [Column(f"embedding {index}", "numeric", f"embedding {index}") for index in range(width)]
    if each:
        return ModalityArray(columns, values, tokens.present, tokens.offsets, kind="sequence")
    return ModalityArray(columns, values, tokens.present)


def _batches(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Rows with any token, those of like length together, as many at once as fit."""
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    start = 0
    while start < order.size:
        size = max(1, _TOKENS_AT_ONCE // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size


def _padded(
    values: npt.NDArray[Any], offsets: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> tuple[Tensor, Tensor, npt.NDArray[np.int64]]:
    """Token ids and mask of some rows, (B,T), and where in `values` each of them stands."""
    lengths = offsets[rows + 1] - offsets[rows]
    steps = np.arange(lengths.max())
    mask = steps < lengths[:, None]
    places = np.where(mask, offsets[rows][:, None] + steps, 0)
    return torch.from_numpy(values[places].astype(np.int64)), torch.from_numpy(mask), places


def _model(folder: Path, attention: str | None) -> Any:
    model = load_model(folder)
    attention = attention or getattr(model.config, TRAINED_ATTENTION, None)
    if attention is not None:
        use_attention(model, attention)
    return model


def _read(model: Any, ids: Tensor, mask: Tensor, output: Output) -> tuple[Tensor, Tensor]:
    """What a model makes of token ids (B,T): states (B,T,F), or (B,1,F) of a whole text, and their mask."""
    ids = ids.masked_fill(~mask, model.config.pad_token_id or 0)
    attended = mask.clone()
    attended[:, 0] |= ~mask.any(dim=1)  # something to attend to in an absent text, whose output is masked later
    states: Tensor = model(input_ids=ids, attention_mask=attended.long()).last_hidden_state
    if output == "tokens":
        return states, mask
    if output == "cls":
        return states[:, :1], mask[:, :1]
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True).clamp(min=1), mask[:, :1]
