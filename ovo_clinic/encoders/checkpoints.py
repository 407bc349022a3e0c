"""Models and tokenizers of transformers from local folders; nothing is ever fetched, and no code of theirs is run."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ovo_clinic import resources
from ovo_clinic.errors import UserError
from ovo_clinic.prepared import Prepared
from ovo_clinic.types import Modality

Output = Literal["cls", "mean", "tokens"]
"""What a model gives out: the state of its first token, the mean over all tokens, or all of them."""
_CARRIED = (
    *("config.json", "preprocessor_config.json", "model.safetensors", "model.safetensors.index.json"),
    *("model-*-of-*.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "*.model"),
)
"""Names of the files that make a model and its tokenizer."""
RECORD = "pretraining.json"
"""File of a checkpoint that `pretrain-text` made: what it is made of."""
TRAINED_ATTENTION = "trained_attention"
"""Setting of a checkpoint that was pretrained here: the implementation of attention/hf.py that it was trained with."""


def pretrained_on(checkpoint: Path) -> dict[str, Any] | None:
    """What `pretrain-text` wrote of a checkpoint's texts; None for one that it did not make, or that is gone."""
    file = checkpoint / RECORD
    if not file.is_file():
        return None
    origin: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["texts"]
    return origin


def is_of_another_split(origin: Mapping[str, Any], prepared: Prepared) -> bool:
    """Whether texts were the training units' of another split of a data set, so that test patients may be among them.

    Args:
        origin: of `pretrained_on`.
        prepared: the data; new ones, for a prediction, have no split.
    """
    digests = prepared.manifest.get("digests")
    same_data = origin.get("dataset", prepared.manifest.get("dataset")) == prepared.manifest.get("dataset")
    return digests is not None and same_data and origin.get("split", digests["split"]) != digests["split"]


def checkpoint_folder(given: str) -> Path:
    """The folder of a checkpoint.

    Raises:
        UserError: there is none.
    """
    folder = resources.absolute(given, "checkpoint")
    if not (folder / "config.json").is_file():
        raise UserError(
            f"checkpoint: {folder} holds no transformers model (no config.json); give the folder of one that was "
            "downloaded, such as medicalai/ClinicalBERT for texts"
        )
    return folder


def carry(folder: Path, out: Path) -> None:
    """Copies what the encoders read of a checkpoint into a new folder, and nothing else that may lie there.

    Raises:
        UserError: a damaged checkpoint.
    """
    from safetensors.torch import save_file

    out.mkdir(parents=True)
    for file in folder.iterdir():
        if file.is_file() and any(fnmatch(file.name, pattern) for pattern in _CARRIED):
            shutil.copyfile(file, out / file.name)
    if not list(out.glob("*.safetensors")):  # an older format, which may run code when it is read
        weights = load_model(folder).state_dict()
        save_file({name: value.contiguous() for name, value in weights.items()}, out / "model.safetensors")


def load_model(folder: Path) -> Any:
    """The model of a checkpoint, in float32 and without the weights of a pooling layer, which no encoder here reads.

    Raises:
        UserError: the files are damaged, lack weights, or belong to a model that is no encoder.
    """
    from transformers import AutoModel

    model, loaded = _read(
        folder,
        lambda: AutoModel.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, output_loading_info=True, dtype=torch.float32
        ),
    )
    # transformers would draw at random what is not in the file, and say so in the log.
    lacking = sorted(name for name in loaded["missing_keys"] if not name.startswith("pooler."))
    if lacking:
        raise UserError(
            f"checkpoint: {folder} lacks {len(lacking)} of the model's weights ({lacking[0]}, ...); download it again"
        )
    if model.config.is_encoder_decoder:
        raise UserError(f"checkpoint: {folder} is a {type(model).__name__} with a decoder; take an encoder like BERT")
    if any(True for _ in getattr(model, "pooler", nn.Identity()).parameters()):  # convolutional models need theirs
        model.pooler = None
    return model


def load_config(folder: Path) -> Any:
    """The settings of a checkpoint's model.

    Raises:
        UserError: they are damaged, or of a model that transformers does not know.
    """
    from transformers import AutoConfig

    return _read(folder, lambda: AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False))


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a checkpoint.

    Raises:
        UserError: its files are absent or damaged.
    """
    from transformers import AutoTokenizer

    tokenizer = _read(
        folder, lambda: AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    )
    # Without a vocabulary's file, transformers makes a tokenizer that knows nothing but its special tokens.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise UserError(f"checkpoint: {folder} holds no vocabulary (tokenizer.json, vocab.txt); download it again")
    return tokenizer


def _read(folder: Path, read: Callable[[], Any]) -> Any:
    try:
        with silent():
            return read()
    except Exception as error:  # every file format, and every model, fails in a way of its own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"checkpoint: {folder} cannot be read: {reason[:200]}; download it again") from None


@contextmanager
def silent() -> Iterator[None]:
    """Without transformers' progress bars, and without its report on weights that are not used."""
    from transformers.utils import logging as transformers_logging

    log: Any = transformers_logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(logging.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def check_kind(encoder: str, modality: Modality, kind: str, frozen: bool) -> None:
    """Checks that an encoder is given what its model reads, or with `frozen: true` what the model made of it.

    Raises:
        UserError: it is given something else.
    """
    if modality.kind not in (("vector", "sequence") if frozen else (kind,)):
        raise UserError(
            f"encoder: {encoder} takes {kind}s, or with frozen: true what it made of them, and {modality.name} is of "
            f"kind {modality.kind}"
        )


def embedded(x: Tensor, mask: Tensor) -> Tensor:
    """Embeddings of a frozen model as tokens (B,T,F), zero where masked: x (B,F) or (B,T,F), mask (B,1) or (B,T)."""
    values = x if x.ndim == 3 else x[:, None]
    return values.masked_fill(~mask[..., None], 0)
