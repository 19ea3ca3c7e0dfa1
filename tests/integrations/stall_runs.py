"""One small model with T-HN and with SelHN, in `Trainer` and in Lightning, with the callback; and a figure of it.

PYTHONPATH=src:tests .venv-integrations/bin/python -m integrations.stall_runs docs/integrations/stall.png
"""

import sys
import tempfile
import warnings
from importlib import import_module

import torch
from torch.utils.data import DataLoader, TensorDataset

from integrations.cases import Towers, found_first, pairs, without_operators

STEPS, BATCH, RATE = 300, 128, 1e-3
HELD_OUT = pairs(256, seed=5)
QUIET = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)


def rows():
    return [
        {"images": image, "texts": text, "image_ids": number}
        for number, (image, text) in enumerate(zip(*pairs()))
    ]


def arguments(folder):
    from transformers import TrainingArguments

    return TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=RATE, use_cpu=True,
        lr_scheduler_type="constant", max_grad_norm=0.0, save_strategy="no", report_to="none", disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip


def trainer(loss, folder, **settings):
    """A `Trainer` of transformers with the callback."""
    from transformers import Trainer

    ours = import_module("selhn.integrations.transformers")

    class MyTrainer(ours.PairTrainerMixin, Trainer):
        pass

    callback = ours.StallCallback(**settings)
    made = MyTrainer(Towers(), arguments(folder), train_dataset=rows(), callbacks=[callback], pair_loss=loss)
    return made, callback


def in_trainer(loss):
    with tempfile.TemporaryDirectory() as folder:
        made, callback = trainer(loss, folder)
        made.train()
    return made.model, callback.watch


def module(loss):
    """A module of Lightning."""
    from lightning.pytorch import LightningModule

    ours = import_module("selhn.integrations.lightning")

    class Module(ours.PairModuleMixin, LightningModule):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.towers = Towers()

        def encode(self, batch):
            return tuple(self.towers(*batch).values())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=RATE)

    return Module(pair_loss=loss)


def in_lightning(loss):
    import lightning.pytorch as pl

    pl.seed_everything(0, verbose=False)
    made, callback = module(loss), import_module("selhn.integrations.lightning").StallCallback()
    steps = pl.Trainer(accelerator="cpu", max_steps=STEPS, callbacks=[callback], **QUIET)
    steps.fit(made, DataLoader(TensorDataset(*pairs()), BATCH, shuffle=True))
    return made.towers, callback.watch


def draw(path):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 5), sharex=True, sharey="row", layout="constrained")
    for column, (title, run) in enumerate(
        {"transformers Trainer": in_trainer, "Lightning": in_lightning}.items()
    ):
        for loss, colour, name in (("hn", "#c44", "T-HN"), ("selhn", "#27a", "SelHN")):
            model, watch = run(loss)
            steps = [row["step"] for row in watch.rows]
            found = f"{found_first(model, HELD_OUT):.0%} found"
            for axis, what in zip(axes[:, column], ("loss_per_anchor", "delta_s")):
                axis.plot(steps, [row[what] for row in watch.rows], color=colour, label=f"{name}, {found}")
                for step in watch.said:
                    axis.axvline(step, color=colour, linestyle=":")
        axes[0, column].set_title(title)
        axes[0, column].legend(framealpha=1, edgecolor="white", loc="center right", bbox_to_anchor=(1, 0.68))
        axes[1, column].set_xlabel("step; dotted: the callback warns")
        axes[1, column].set_yscale("log")
    axes[0, 0].set_ylabel("loss per anchor")
    axes[1, 0].set_ylabel("delta_s")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    without_operators()
    draw(sys.argv[1])
