"""Trains a small BERT to tell masked tokens (Devlin et al. 2019, section 3.1, task 1), interruptible at any epoch."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ovo_clinic.attention.hf import use_attention
from ovo_clinic.corpus import Texts
from ovo_clinic.encoders.checkpoints import TRAINED_ATTENTION, load_tokenizer
from ovo_clinic.encoders.wordpieces import Masking, learn_tokenizer, pieces
from ovo_clinic.errors import UserError
from ovo_clinic.registry import Options

_STATE = "state.pt"
_LARGEST_BATCH = 1 << 14  # tokens, where no gradient is kept


class Pretraining(Options):
    """How a BERT is pretrained; small by default, for two CPU cores.

    Attributes:
        vocabulary: WordPiece tokens at most, learned from the texts to train on.
        layers, width, heads: of the BERT; its inner networks are four times as wide.
        max_tokens: of a piece that a text is cut into, special ones included; later texts may not be longer.
        attention: an implementation of attention/hf.py (`sdpa`, `preconditioned`, ...), kept in the checkpoint.
        masked: share of the tokens to be told, of which 80 % are masked, 10 % are others and 10 % stay.
        held_out: share of the texts (of the patients, where these are known) that the loss is measured on.
        epochs: at most.
        patience: epochs without a lower held-out loss before it stops; the best epoch's weights are kept.
        warmup: share of all steps in which the learning rate rises, before it falls to 0.
        seed: of weights, order, masks, dropout and what is held out.
        threads: CPU threads of torch; another number gives other last digits.
    """

    vocabulary: int = Field(4000, ge=50)
    layers: int = Field(2, ge=1)
    width: int = Field(128, ge=1)
    heads: int = Field(2, ge=1)
    max_tokens: int = Field(128, ge=8)
    attention: str = "sdpa"
    masked: float = Field(0.15, gt=0, lt=1)
    held_out: float = Field(0.1, gt=0, lt=1)
    epochs: int = Field(40, ge=1)
    patience: int = Field(5, ge=1)
    batch_size: int = Field(16, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    warmup: float = Field(0.1, ge=0, lt=1)
    dropout: float = Field(0.1, ge=0, lt=1)
    seed: int = Field(0, ge=0)
    threads: int = Field(1, ge=1)


class MaskedTraining:
    """A pretraining that can be interrupted after any epoch.

    Attributes:
        history: the losses of every epoch.
        best: the weights of the epoch with the lowest held-out loss.
        tokenizer, model: see there.
        counts: texts and tokens on both sides.
        seconds: that were spent, in all runs.
    """

    def __init__(self, texts: Texts, settings: Pretraining, working: Path, identity: str) -> None:
        torch.set_num_threads(settings.threads)
        self._settings, self._file, self._identity = settings, working / _STATE, identity
        training, held_out = texts.split(settings.held_out, settings.seed)
        state = self._saved(working)
        if state is None:
            learn_tokenizer(training, settings.vocabulary, settings.max_tokens, working / "tokenizer")
        self.tokenizer = load_tokenizer(working / "tokenizer")
        self._pieces, self._held_out = (
            pieces(part, self.tokenizer, settings.max_tokens) for part in (training, held_out)
        )
        self.counts = {**_counts("training", training, self._pieces), **_counts("held_out", held_out, self._held_out)}
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(settings.seed)
        self.model = _bert(settings, len(self.tokenizer)).to(self._device)
        self._optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self._schedule = self._rising_and_falling()
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Tensor] = {}
        self.seconds = 0.0
        if state is not None:
            self._restore(state)

    def run(self, on_progress: Callable[[int, int], None]) -> None:
        """Trains until the held-out loss gets no better, or to the last epoch."""
        while not self._over():
            started, epoch = time.perf_counter(), len(self.history)
            train_loss = self._train(epoch)
            loss, accuracy = self._evaluate()
            if not math.isfinite(train_loss + loss):
                raise UserError(f"pretraining diverged in epoch {epoch}: lower pretraining.learning_rate")
            if loss < min((past["held_out_loss"] for past in self.history), default=math.inf):
                self.best = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
            values = {"train_loss": train_loss, "held_out_loss": loss, "held_out_accuracy": accuracy}
            self.history.append({"epoch": float(epoch), **values, "held_out_perplexity": math.exp(loss)})
            self.seconds += time.perf_counter() - started
            self._save()
            on_progress(epoch + 1, self._settings.epochs)

    @property
    def best_epoch(self) -> int:
        """The epoch with the lowest held-out loss."""
        return min(range(len(self.history)), key=lambda epoch: self.history[epoch]["held_out_loss"])

    def _over(self) -> bool:
        done = len(self.history)
        return done >= self._settings.epochs or (done > 0 and done - 1 - self.best_epoch >= self._settings.patience)

    def _train(self, epoch: int) -> float:
        """One epoch; its mean loss. Order, masks and dropout depend on the seed and the epoch alone."""
        settings = self._settings
        torch.manual_seed(settings.seed * 100_003 + epoch)
        masking = Masking(self.tokenizer, settings.masked, seed=settings.seed * 100_003 + epoch)
        self.model.train()
        total = count = 0.0
        for rows in torch.split(torch.randperm(len(self._pieces)), settings.batch_size):
            loss, _, told = self._loss(*masking(self._pieces[rows]))
            if told:
                self._optimiser.zero_grad()
                torch.autograd.backward(loss / told)
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self._optimiser.step()
            self._schedule.step()
            total, count = total + loss.item(), count + told
        return total / max(1.0, count)

    @torch.no_grad()
    def _evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy on the held-out pieces, whose masks are the same in every epoch."""
        masking = Masking(self.tokenizer, self._settings.masked, seed=self._settings.seed)
        self.model.eval()
        size = max(1, _LARGEST_BATCH // self._settings.max_tokens)
        found = [self._loss(*masking(part)) for part in torch.split(self._held_out, size)]
        told = max(1, sum(count for *_, count in found))
        return sum(loss.item() for loss, *_ in found) / told, sum(right for _, right, _ in found) / told

    def _loss(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, int, int]:
        """Sum of the losses of the tokens to be told, how many were told right, and how many there were."""
        ids, labels = ids.to(self._device), labels.to(self._device)
        attended = (ids != self.tokenizer.pad_token_id).long()
        states = self.model.bert(input_ids=ids, attention_mask=attended).last_hidden_state
        wanted = labels >= 0
        logits = self.model.cls(states[wanted])  # the vocabulary is wide: only where a token is to be told
        loss = cross_entropy(logits, labels[wanted], reduction="sum")
        return loss, int((logits.argmax(dim=1) == labels[wanted]).sum()), int(wanted.sum())

    def _rising_and_falling(self) -> Any:
        import transformers

        make: Any = transformers.get_linear_schedule_with_warmup
        steps = self._settings.epochs * math.ceil(len(self._pieces) / self._settings.batch_size)
        return make(self._optimiser, round(self._settings.warmup * steps), steps)

    def _save(self) -> None:
        state = {
            "identity": self._identity,
            "model": self.model.state_dict(),
            "best": self.best,
            "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
            "history": self.history,
            "seconds": self.seconds,
        }
        partial = self._file.with_suffix(".partial")
        torch.save(state, partial)
        partial.chmod(0o600)
        partial.replace(self._file)

    def _saved(self, working: Path) -> dict[str, Any] | None:
        """The state of a training that was interrupted.

        Raises:
            UserError: it is of another training.
        """
        if not self._file.is_file():
            return None
        state: dict[str, Any] = torch.load(self._file, map_location="cpu", weights_only=True)
        if state["identity"] != self._identity:
            raise UserError(
                f"--out: {working} holds an unfinished training on other texts or with other settings; remove it, or "
                "name another folder"
            )
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._schedule.load_state_dict(state["schedule"])
        self.best, self.history, self.seconds = state["best"], state["history"], state["seconds"]


def _bert(settings: Pretraining, vocabulary: int) -> Any:
    """A BERT with random weights.

    Raises:
        UserError: an attention that is not known, or heads that do not divide the width.
    """
    from transformers import BertConfig, BertForMaskedLM

    if settings.width % settings.heads:
        raise UserError(f"pretraining.heads: {settings.heads} does not divide the width {settings.width}")
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=4 * settings.width,
        max_position_embeddings=settings.max_tokens,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
    )
    setattr(config, TRAINED_ATTENTION, settings.attention)
    model = BertForMaskedLM(config)
    use_attention(model, settings.attention)
    return model


def _counts(part: str, texts: pl.Series, found: Tensor) -> dict[str, int]:
    return {f"{part}_texts": texts.len(), f"{part}_pieces": len(found), f"{part}_tokens": int((found != 0).sum())}
