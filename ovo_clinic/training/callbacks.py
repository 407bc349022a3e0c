"""What watches a training: condition numbers, patience, and a search that gives hopeless trials up."""

from collections.abc import Callable

import lightning
from lightning.pytorch.callbacks import Callback, EarlyStopping

from ovo_clinic import condition
from ovo_clinic.training.module import FusionModule
from ovo_clinic.types import Batch

Hopeless = Callable[[int, float], bool]
"""Whether to stop a training, given the epoch and its validation metric."""


class ConditionNumbers(Callback):
    """Adds `condition.condition_metrics` of fixed units to the history, once an epoch.

    Args:
        batch: the units.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Measures; the model is in evaluation mode still, and the epoch in the history already."""
        assert isinstance(pl_module, FusionModule)
        batch = self._batch.to(pl_module.device)
        pl_module.history[-1] |= condition.condition_metrics(pl_module.model, batch)


class Patience(EarlyStopping):
    """Early stopping that a run killed right after its last epoch remembers when it resumes."""

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stops before another epoch where the checkpoint was the last one's."""
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience


class Pruning(Callback):
    """Stops a training that another judges hopeless by its validation metric, and remembers when it resumes.

    Args:
        hopeless: asked once for each epoch, in order; for those before a resumption too.

    Attributes:
        ended: whether it stopped the training.
    """

    def __init__(self, hopeless: Hopeless) -> None:
        self._hopeless, self._seen, self.ended = hopeless, 0, False

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Asks for the epochs of the checkpoint."""
        self._ask(trainer, pl_module)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Asks for the new epoch."""
        self._ask(trainer, pl_module)

    def _ask(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, FusionModule)
        for epoch in pl_module.history[self._seen :]:
            self.ended = self._hopeless(int(epoch["epoch"]), epoch[pl_module.monitor])
        self._seen = len(pl_module.history)
        trainer.should_stop = trainer.should_stop or self.ended
