"""The Lightning module: a fusion model with its loss, its optimiser and validation metrics of whole splits."""

import warnings
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.types import Batch, Task


class FusionModule(lightning.LightningModule):
    """A fusion model with its loss, optimiser and whole-split validation metrics.

    Args:
        model: from `build_model`.
        task: loss and metrics.
        experiment: learning rate, weight decay, seed.
    """

    def __init__(self, model: nn.Module, task: Task, experiment: Experiment) -> None:
        super().__init__()
        self.model, self.history = model, list[dict[str, float]]()
        self._task, self._experiment = task, experiment
        self._losses: list[Tensor] = []
        self._outputs: list[tuple[Tensor, Tensor]] = []

    @property
    def monitor(self) -> str:
        """Key of the history that selects the best epoch."""
        return f"validation_{self._experiment.training.monitor or self._task.monitor}"

    def on_fit_start(self) -> None:
        """Sets the threads and silences the notices of this process, a new one where there are several devices."""
        torch.set_num_threads(self._experiment.training.threads)
        warnings.filterwarnings("ignore", module="lightning")

    def on_train_epoch_start(self) -> None:
        """Seeds dropout and order by seed and epoch, so that a resumed run repeats one that was not interrupted."""
        torch.manual_seed(self._experiment.seed * 100_003 + self.current_epoch)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """Mean loss of a batch."""
        loss = self._task.loss(self.model(batch), batch.target)
        self._losses.append(loss.detach())
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        """Keeps the logits: metrics are of the whole split."""
        self._outputs.append((self.model(batch).float(), batch.target))

    def on_validation_epoch_end(self) -> None:
        """Metrics of the whole validation split, logged once an epoch."""
        logits = torch.cat([logits for logits, _ in self._outputs])
        target = torch.cat([target for _, target in self._outputs])
        train_loss = torch.stack(self._losses).mean().item() if self._losses else float("nan")
        self._outputs, self._losses = [], []
        if not torch.isfinite(logits).all():
            raise UserError(
                f"training diverged in epoch {self.current_epoch} (seed {self._experiment.seed}): "
                "lower training.learning_rate"
            )
        metrics = self._task.metrics(self._task.predict(logits).cpu().numpy(), target.cpu().numpy())
        loss = self._task.loss(logits, target).item()
        values = {"train_loss": train_loss, "validation_loss": loss}
        values |= {f"validation_{name}": value for name, value in metrics.items()}
        self.history.append({"epoch": float(self.current_epoch), **values})
        self.log_dict(values)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the history with the weights."""
        checkpoint["history"] = list(self.history)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the history up again."""
        self.history = list(checkpoint["history"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        training = self._experiment.training
        return torch.optim.AdamW(self.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
