"""Two processes, half of the batch each: the gradients that each library has for its model.

torchrun --nproc-per-node 2 tests/integrations/two_processes.py FOLDER
"""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from integrations.cases import Towers, gradients, pairs, sentences, small_clip, without_operators

PAIRS, SETTINGS = 16, {"learning_rate": 1.0, "optim": "sgd", "weight_decay": 0.0, "max_grad_norm": 0.0}
IDS = torch.arange(PAIRS) // 2
QUIET = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)


def half(batch):
    rows = slice(dist.get_rank(), None, 2)
    return [one[rows] for one in batch]


def moved(model, train):
    """What one step of gradient descent with a learning rate of 1 takes from every weight."""
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    train()
    return {name: before[name] - weight.detach() for name, weight in model.named_parameters()}


def accelerate(folder):
    import accelerate

    from selhn.integrations.accelerate import pair_loss

    accelerator, model = accelerate.Accelerator(cpu=True), Towers()
    prepared = accelerator.prepare(model)
    images, texts, ids = half((*pairs(PAIRS), IDS))
    loss = pair_loss(accelerator, prepared)
    accelerator.backward(loss(*prepared(images, texts).values(), ids))
    assert (loss.watch.rows != []) == (dist.get_rank() == 0), "only the first process watches"
    return gradients(model)


def pytorch_metric_learning(folder):
    from selhn.integrations.pytorch_metric_learning import MetricPairLoss

    model, (images, texts, ids) = Towers(), half((*pairs(PAIRS), IDS))
    wrapped = DistributedDataParallel(model)
    outputs = wrapped(images, texts)
    MetricPairLoss()(outputs["image_embeds"], ids, ref_emb=outputs["text_embeds"], ref_labels=ids).backward()
    return gradients(model)


def open_clip(folder):
    from selhn.integrations.open_clip import ClipPairLoss

    model, batch = small_clip(PAIRS)
    wrapped = DistributedDataParallel(model)
    loss = ClipPairLoss(True, False, rank=dist.get_rank(), world_size=2)
    loss(**wrapped(*half(batch))).backward()
    return gradients(model)


def arguments(cls, folder, **settings):
    quiet = {
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "lr_scheduler_type": "constant",
    }
    return cls(
        str(folder), max_steps=1, use_cpu=True, per_device_train_batch_size=8, **quiet, **SETTINGS, **settings
    )


def transformers(folder):
    import transformers

    from selhn.integrations.transformers import PairTrainerMixin

    class MyTrainer(PairTrainerMixin, transformers.Trainer):
        pass

    rows = [dict(zip(("images", "texts", "image_ids"), row)) for row in zip(*pairs(PAIRS), IDS)]
    settings = arguments(transformers.TrainingArguments, folder, remove_unused_columns=False)
    trainer = MyTrainer(Towers(), settings, train_dataset=rows)
    return moved(trainer.model, trainer.train)


def sentence_transformers(folder, **of_loss):
    import datasets
    import sentence_transformers

    from selhn.integrations.sentence_transformers import SentencePairLoss

    model, columns = sentences(PAIRS)
    rows = datasets.Dataset.from_dict(dict(zip(("anchor", "positive"), columns)))
    settings = arguments(sentence_transformers.SentenceTransformerTrainingArguments, folder)
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model, settings, train_dataset=rows, loss=SentencePairLoss(model, **of_loss)
    )
    return moved(model, trainer.train)


def cached(folder):
    return sentence_transformers(folder, mini_batch_size=3)


def lightning(folder):
    import lightning.pytorch as pl

    from selhn.integrations.lightning import PairModuleMixin

    class Module(PairModuleMixin, pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.towers = Towers()

        def encode(self, batch):
            images, texts, ids = batch
            return (*self.towers(images, texts).values(), ids)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=1, **QUIET)
    module, rows = Module(), TensorDataset(*pairs(PAIRS), IDS)
    return moved(module.towers, lambda: trainer.fit(module, DataLoader(rows, 8, shuffle=True)))


# accelerate opens the group, which the others find; Lightning closes it.
EACH = (
    accelerate,
    pytorch_metric_learning,
    open_clip,
    transformers,
    sentence_transformers,
    cached,
    lightning,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    without_operators()
    found = {}
    for one in EACH:
        found[one.__name__] = one(Path(sys.argv[1]) / one.__name__)
    if dist.get_rank() == 0:
        torch.save(found, Path(sys.argv[1]) / "found.pt")
