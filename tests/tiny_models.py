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


def tiny_image_model(folder: Path, architecture: str = "vit", channels: int = 7, size: int = 16) -> Path:
    """Writes a ViT or a ResNet of a few thousand weights for images of `size` pixels (a ResNet takes any)."""
    from transformers import PreTrainedModel, ResNetConfig, ResNetModel, ViTConfig, ViTModel

    torch.manual_seed(4)
    model: PreTrainedModel
    if architecture == "vit":
        settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        shape = {"image_size": size, "patch_size": 8, "num_channels": channels, "initializer_range": 0.3}
        model = ViTModel(ViTConfig(**settings, **shape))
    else:
        settings = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}
        model = ResNetModel(ResNetConfig(num_channels=channels, **settings))
    model.save_pretrained(folder)
    return folder
