"""Small transformers checkpoints with random weights, built on the spot."""

import shutil
from pathlib import Path

import torch

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] lungs are clear no acute fever cough heart enlarged stable effusion".split()
"""The vocabulary of `tiny_bert`, in the order of the token ids."""


def tiny_bert(folder: Path, architecture: str = "bert", positions: int = 24) -> Path:
    """Writes a BERT or DistilBERT of width 16 with two layers, its masked-language head and its tokenizer."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertTokenizer,
        DistilBertConfig,
        DistilBertForMaskedLM,
        PreTrainedModel,
    )

    torch.manual_seed(3)
    shared = {"vocab_size": len(WORDS), "max_position_embeddings": positions, "initializer_range": 0.3}
    model: PreTrainedModel
    if architecture == "bert":
        model = BertForMaskedLM(
            BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **shared)
        )
    else:
        model = DistilBertForMaskedLM(DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **shared))
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder
