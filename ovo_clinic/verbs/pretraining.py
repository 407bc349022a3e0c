"""`pretrain-text`: a small BERT on local texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovo_clinic import corpus, tracking
from ovo_clinic import experiment as experiments
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import prepare_task
from ovo_clinic.raw_folders import Given
from ovo_clinic.registry import check


@dataclass(frozen=True)
class Source:
    """Which texts to pretrain on: either a task or a folder.

    Attributes:
        task: a task's name or the path of a config; only texts of its training units are read.
        overrides: `key=value` settings of the task.
        raw: its raw folder, or one for each download; needed once.
        modality: which one, where the task has several of texts.
        folder: of .txt, .csv, .csv.gz and .parquet files.
        column: of the tables in that folder.

    Raises:
        UserError: neither or both are named, or an option is of the other one.
    """

    task: str | None = None
    overrides: Sequence[str] = ()
    raw: Given | None = None
    modality: str | None = None
    folder: Path | None = None
    column: str = "text"

    def __post_init__(self) -> None:
        if (self.task is None) == (self.folder is None):
            raise UserError("pretrain-text: give either a task or --texts FOLDER")
        if self.folder is not None and self.modality is not None:
            raise UserError("pretrain-text: --modality is of a task, and none is named")
        if self.task is not None and self.column != "text":
            raise UserError("pretrain-text: --column is of the tables of --texts FOLDER; a task's spec names its own")

    def texts(self) -> corpus.Texts:
        """The texts.

        Raises:
            UserError: none are found.
        """
        if self.folder is not None:
            return corpus.of_folder(self.folder, self.column)
        assert self.task is not None
        prepared = prepare_task(experiments.load(self.task, self.overrides), self.raw)
        return corpus.of_task(prepared, self.modality)


@dataclass(frozen=True)
class Pretrained:
    """A finished pretraining.

    Attributes:
        folder: of the checkpoint, for `model.encoders.text='{name: text, checkpoint: FOLDER}'`.
        record: settings, digests, counts and losses.
        tracking_uri: where MLflow holds the record.
    """

    folder: Path
    record: dict[str, Any]
    tracking_uri: str


def pretrain_text(
    source: Source,
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    tracking_uri: str | None = None,
    allow_remote_tracking: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Pretrained:
    """Pretrains a BERT by masked language modelling, and logs it to MLflow without any text.

    Args:
        source: of the texts.
        folder: of the checkpoint, a new one. An interrupted training goes on where it was.
        settings: of `encoders.masked_language.Pretraining` that differ from its defaults.
        tracking_uri: as in `compare`.
        allow_remote_tracking: likewise.
        on_progress: told the epochs done, and how many there may be.

    Raises:
        UserError: a wrong setting, no texts, or a folder with something else in it.
    """
    from ovo_clinic.encoders.masked_language import Pretraining
    from ovo_clinic.encoders.pretraining import pretrain

    checked = check(Pretraining, settings or {}, "pretraining")
    store = tracking.Store(tracking.tracking_uri(tracking_uri, allow_remote_tracking))
    folder = folder.expanduser().resolve()
    record = pretrain(source.texts(), checked, folder, on_progress)
    store.log_pretraining(record, f"{checked.attention} seed {checked.seed}")
    return Pretrained(folder, record, store.uri)
