"""The `Trainer` of transformers: its loss for two-tower models, a collator for pairs, and the stall alarm."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from selhn.base.errors import needs
from selhn.integrations.pairs import Listener, PairLoss, embeddings_of
from selhn.losses import AbstractLoss

with needs("transformers>=5"):
    from transformers import TrainerCallback


class PairTrainerMixin:
    """`class MyTrainer(PairTrainerMixin, Trainer)`: trains CLIP, SigLIP and the like with a loss of selhn.

    The model returns both embeddings under one of the names in `pairs.NAMES`. A batch may have `image_ids`: pairs of
    one image are not negatives of each other. `pair_loss` is a loss or its name, "selhn" unless given.
    """

    loss_is_scaled_for_ga = (
        False  # the mean over a batch: the Trainer divides it when it accumulates gradients
    )

    def __init__(self, *arguments: Any, pair_loss: AbstractLoss | str = "selhn", **settings: Any):
        super().__init__(*arguments, **settings)
        self.pair_loss = PairLoss(pair_loss).to(self.args.device)  # type: ignore[attr-defined]
        self.pair_loss.require_trained(self.model.parameters())  # type: ignore[attr-defined]
        self.can_return_loss = True  # otherwise `evaluate` would have no eval_loss
        for callback in self.callback_handler.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, StallCallback) and callback.loss is None:
                callback.loss = self.pair_loss

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **_: Any
    ) -> Any:
        """Called by `Trainer`."""
        ids = inputs.pop("image_ids", None)
        outputs = model(**{name: value for name, value in inputs.items() if name != "return_loss"})
        value = self.pair_loss.train(model.training)(*embeddings_of(outputs), ids)
        return (value, outputs) if return_outputs else value


class PairCollator:
    """A batch from rows with an image and a caption, by the model's processor; `image_id` becomes `image_ids`."""

    def __init__(self, processor: Any, image: str = "image", text: str = "text", image_id: str = "image_id"):
        self.processor, self.image, self.text, self.image_id = processor, image, text, image_id

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The inputs of the model."""
        images, texts = ([row[name] for row in rows] for name in (self.image, self.text))
        batch = dict(
            self.processor(text=texts, images=images, return_tensors="pt", padding=True, truncation=True)
        )
        if self.image_id in rows[0]:
            batch["image_ids"] = torch.tensor([row[self.image_id] for row in rows])
        return batch


class StallCallback(Listener, TrainerCallback):
    """Warns when training stalls: `Trainer(..., callbacks=[StallCallback()])`, whatever the loss is.

    See `Listener` for its settings; a running Weights & Biases run is alerted too.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        steps = args.gradient_accumulation_steps * state.max_steps / max(1, state.num_train_epochs)
        self.start(model, round(steps), [getattr(sys.modules.get("wandb"), "run", None)])

        def listen(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
            if module.training:
                self.hear(outputs)

        self.hook = model.register_forward_hook(listen)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.hook.remove()
        self.stop()
