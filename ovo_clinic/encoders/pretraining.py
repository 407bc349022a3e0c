"""Pretraining of a small BERT on local texts, to a checkpoint folder with a record.

The result is a checkpoint that the encoder `text` takes. While it is made, its state lies beside it in
`<folder>.partial`, so that a killed training goes on at the epoch it had reached.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ovo_clinic import provenance
from ovo_clinic.corpus import Texts
from ovo_clinic.encoders.checkpoints import RECORD, silent
from ovo_clinic.encoders.masked_language import MaskedTraining, Pretraining
from ovo_clinic.errors import UserError
from ovo_clinic.locks import locked

Record = dict[str, Any]
"""Content of `pretraining.json`: settings, digests, counts, the losses of every epoch. No text, no word."""


def pretrain(
    texts: Texts,
    settings: Pretraining,
    folder: Path,
    on_progress: Callable[[int, int], None] | None = None,
) -> Record:
    """Pretrains a BERT and writes it as a checkpoint with its tokenizer and its record.

    Args:
        texts: a part of them is held out.
        settings: see Pretraining.
        folder: of the checkpoint, new; its files may tell of the texts, so that only their owner can read them. One
            that the same texts and settings have made already is left as it is.
        on_progress: told the epochs done, and how many there may be.

    Returns:
        The record.

    Raises:
        UserError: settings that do not fit, or a folder with something else in it.
    """
    identity = provenance.digest_of(
        {"texts": texts.digest(), "settings": settings.model_dump(), "versions": provenance.versions()}
    )
    working = folder.with_name(f"{folder.name}.partial")
    working.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(working / "lock"):
        if not folder.exists():
            training = MaskedTraining(texts, settings, working, identity)
            training.run(on_progress or (lambda done, total: None))
            _finish(training, texts, settings, identity, folder)
    shutil.rmtree(working, ignore_errors=True)
    return _record_of(folder, identity)


def _record_of(folder: Path, identity: str) -> Record:
    file = folder / RECORD
    record: Record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if record.get("identity") != identity:
        raise UserError(f"--out: {folder} holds something else; name a new folder")
    return record


def _finish(training: MaskedTraining, texts: Texts, settings: Pretraining, identity: str, folder: Path) -> None:
    """Writes the checkpoint beside its place and moves it there."""
    complete = folder.with_name(f"{folder.name}.partial") / "checkpoint"
    shutil.rmtree(complete, ignore_errors=True)
    complete.mkdir(mode=0o700)
    training.model.load_state_dict(training.best)
    with silent():
        training.model.save_pretrained(complete)
        training.tokenizer.save_pretrained(complete)
    best = {name: value for name, value in training.history[training.best_epoch].items() if name != "epoch"}
    record = {
        "identity": identity,
        "settings": settings.model_dump(),
        "texts": {**texts.origin, "digest": texts.digest(), **training.counts},
        "vocabulary": len(training.tokenizer),
        "best_epoch": training.best_epoch,
        "metrics": best,
        "history": training.history,
        "seconds": training.seconds,
        "versions": provenance.versions(),
        "git_commit": provenance.git_commit(),
    }
    (complete / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for path in complete.iterdir():
        path.chmod(0o600)
    complete.rename(folder)
