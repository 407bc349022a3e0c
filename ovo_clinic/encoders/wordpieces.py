"""WordPiece tokens of local texts: learned, cut into pieces of a model's length, masked."""

from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import pad

from ovo_clinic.errors import UserError

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LEAST_COUNT = 2
_TEXTS_AT_ONCE = 1024


def learn_tokenizer(texts: pl.Series, vocabulary: int, max_tokens: int, folder: Path) -> None:
    """Learns the WordPiece tokens of texts, in lower case, and writes them as a tokenizer of BERT.

    Args:
        texts: to learn from.
        vocabulary: tokens at most.
        max_tokens: that the model reads.
        folder: of the tokenizer's files.

    Source:
        Schuster and Nakajima 2012; as in Devlin et al. 2019.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import BertTokenizer

    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizers.BertNormalizer(lowercase=True)
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, later = _letters(learner, texts)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        min_frequency=_LEAST_COUNT,
        # Letters inside words would get their places in the order of a hash table, which decides between equal counts.
        special_tokens=[*_SPECIAL, *first, *(f"##{letter}" for letter in later)],
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    places = learner.get_vocab()
    vocabulary_by_place = {token: places[token] for token in sorted(places, key=lambda token: places[token])}
    BertTokenizer(vocab=vocabulary_by_place, model_max_length=max_tokens).save_pretrained(folder)


def _letters(learner: Any, texts: pl.Series) -> tuple[list[str], list[str]]:
    """The characters that words begin with, and those further inside, sorted."""
    first: set[str] = set()
    later: set[str] = set()
    for text in texts:
        words = learner.pre_tokenizer.pre_tokenize_str(learner.normalizer.normalize_str(text))
        first.update(word[0] for word, _ in words)
        later.update(*(word[1:] for word, _ in words))
    return sorted(first), sorted(later)


def pieces(texts: pl.Series, tokenizer: Any, max_tokens: int) -> Tensor:
    """Texts cut into pieces of token ids (pieces,max_tokens) int32, each between [CLS] and [SEP]; 0 = [PAD].

    Raises:
        UserError: no token of them is known.
    """
    found: list[Tensor] = []
    for part in texts.to_frame().iter_slices(_TEXTS_AT_ONCE):
        cut = tokenizer(
            part.to_series().to_list(), truncation=True, max_length=max_tokens, return_overflowing_tokens=True
        )["input_ids"]
        found += [torch.tensor(ids, dtype=torch.int32) for ids in cut if len(ids) > 2]
    if not found:
        raise UserError("pretrain-text: the texts hold no word; give others")
    return torch.stack([pad(ids, (0, max_tokens - len(ids))) for ids in found])


class Masking:
    """Masks tokens for a model to tell: 80 % of the chosen ones masked, 10 % others, 10 % as they are.

    Args:
        tokenizer: of the model.
        share: of the tokens that are chosen; special ones never are.
        seed: of the draw, which goes on from batch to batch.
    """

    def __init__(self, tokenizer: Any, share: float, seed: int) -> None:
        from transformers import DataCollatorForLanguageModeling

        self._collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=share)
        self._collator.generator = torch.Generator().manual_seed(seed)
        self._special = torch.tensor(tokenizer.all_special_ids)

    def __call__(self, piece_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Ids (B,T) of pieces -> ids with masks and labels, (B,T') int64, T' = the longest piece; -100 = not told."""
        longest = int((piece_ids != 0).sum(dim=1).max())
        ids = piece_ids[:, :longest].long()
        special = torch.isin(ids, self._special)
        masked, labels = self._collator.torch_mask_tokens(ids.clone(), special)
        return masked, labels
