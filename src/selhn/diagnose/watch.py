"""The stall alarm and the probe for your own training loop: one line per step."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.base.errors import SelhnError, warn
from selhn.base.names import require_type
from selhn.base.ranks import Processes
from selhn.base.types import Products
from selhn.diagnose.logs import from_rows
from selhn.diagnose.probe import (
    Row,
    false_negatives,
    gradient_norms,
    probe_embeddings,
    probe_scores,
    read_numbers,
)
from selhn.diagnose.stall import StallAlarm, epsilon_of, make_alarm, watched_plateau
from selhn.diagnose.verdict import Verdict, judge
from selhn.losses import AbstractLoss, create_loss
from selhn.losses.checks import ImageIds, as_image_ids, check_square

Numbers = dict[str, Float[Tensor, ""]]


def _loss_value(loss: object) -> Tensor:
    """The loss of a step, as a tensor without axes."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.detach().reshape(())
    if isinstance(loss, int | float | np.number) or (isinstance(loss, np.ndarray) and loss.size == 1):
        return torch.tensor(float(np.asarray(loss).item()))
    got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
    raise SelhnError(
        f"the loss must be one number, got {got}: watch(scores, loss) takes the mean over the batch"
    )


class Watch:
    """Checks the scores every few steps, and warns when training stalls and when it recovers.

        watch = Watch()
        ...
            watch(scores, loss)

    `rows` holds the measurements, and `verdict()` is what `selhn diagnose` says about them. With several
    processes only the first one watches, over its own pairs.

    Args:
        loss: the selhn loss that you train with, or its name: its plateau and patience are then known.
            Without it the scores alone decide, as they can for any loss that mines the hardest negative.
        every: steps between two checks; calls in between cost nothing.
        steps_per_epoch: a loss of all negatives may stay on its plateau for four epochs before it counts as stalled.
        trackers: objects whose `alert(title=, text=)` is called too, such as a run of Weights & Biases.
    """

    def __init__(
        self,
        loss: AbstractLoss | str | None = None,
        *,
        every: int = 10,
        steps_per_epoch: int = 0,
        trackers: Iterable[Any] = (),
    ):
        if every < 1:
            raise SelhnError(f"every must be at least 1, got {every}: 1 measures every step")
        self.loss = create_loss(loss) if isinstance(loss, str) else loss
        if self.loss is not None:
            require_type("loss", self.loss, AbstractLoss, "leave it out for a loss of your own: Watch()")
        alarm = None if self.loss is None else make_alarm(self.loss, steps_per_epoch)
        self.epsilon = epsilon_of(self.loss)
        self.alarm = StallAlarm(None) if alarm is None else alarm
        """Warns in the loop; `alarm.said` has the sentence while it holds."""
        self.every, self.trackers = every, list(trackers)
        self.step = 0
        """Calls so far: the number of the step."""
        self.rows: list[Row] = []
        self.said: dict[int, str] = {}
        """Every sentence so far, by step."""

    def __call__(
        self,
        scores: Float[Tensor, "*K B B"] | Products,
        loss: Tensor | float | None = None,
        image_ids: ImageIds = None,
    ) -> Row | None:
        """One step: `scores[image, text]` as the loss takes them, and the loss. Returns what was measured."""
        return self._look(scores, loss, image_ids)

    def verdict(self) -> Verdict:
        """What `selhn diagnose` says about the steps so far; they must have had a loss, unless it is one of ours."""
        if not self.rows:
            raise SelhnError(
                "nothing has been watched yet: call watch(scores, loss) in every step, "
                "with batches of at least two pairs"
            )
        alarm, mines = self.alarm, self.loss is None or self.loss.mines
        log = from_rows(self.rows, "what was watched")
        return judge(log, epsilon=alarm.epsilon, patience=alarm.patience, mines=mines, remedy=alarm.remedy)

    @torch.no_grad()
    def _look(
        self,
        scores: Float[Tensor, "*K B B"] | Products,
        loss: Tensor | float | None,
        image_ids: ImageIds,
        more: Callable[[Tensor | None], Numbers] = lambda ids: {},
    ) -> Row | None:
        check_square(scores)
        self.step += 1
        ranks = Processes.of()
        if (self.step - 1) % self.every or (ranks is not None and ranks.own):
            return None
        batch, device = scores.shape[-1], scores.device
        if batch < 2:  # without a negative, scores say nothing about a stall
            return None
        own = as_image_ids(image_ids, batch)
        ids = None if own is None else own.to(device)
        numbers: Numbers = {} if loss is None else {"loss": _loss_value(loss).to(device)}
        known = None
        if self.loss is not None:
            # Computed on these pairs alone: a loss across processes has more pairs, and another plateau.
            known = self.loss.statistics(scores, ids, also=("hardest",))
            numbers["loss_per_anchor"] = self.loss.reduce(known, "mean")
            self.alarm.plateau = watched_plateau(self.loss, batch)
        numbers |= probe_scores(scores, ids, self.epsilon, None if known is None else known.raw)
        row: Row = {"step": self.step, **read_numbers(numbers | more(ids))}
        self.rows.append(row)
        was_cosines = self.alarm.size == 1
        said = self.alarm.update(self.step, row)
        if was_cosines and self.alarm.size > 1 and (self.loss is None or self.loss.margin):
            warn(
                f"scores around {row['s_n']:.3g} are not cosines, for which the margin and the epsilon of a triplet "
                "loss are meant: with logits, SelHN mines everywhere, as T-HN does. Give it cosines, and a softmax "
                "loss the logits. The alarm now measures in units of the scores"
            )
        if said:
            self.said[self.step] = said
            warn(said)
            for tracker in self.trackers:
                tracker.alert(title=said.split(":")[0], text=said)
        return row


class Probe(Watch):
    """A watch that also measures gradients and embeddings; it takes two lines.

        probe = Probe(model, "probe.jsonl")
        ...
            loss.backward()
            probe(scores, loss=loss, image_ids=image_ids, images=image_emb, texts=text_emb)
            optimizer.step()

    Call it after the backward pass and before the gradients are cleared. Only `scores[image, text]` is
    required, with pairs on the diagonal. The file has a line of JSON per row, which `selhn diagnose` reads if
    `loss` is given too.

    Args:
        model: its gradients are measured, one number per module that has weights of its own.
        path: a file, overwritten; None keeps the rows in memory only. Its folder is made if there is none.
        epsilon: the delta_s above which an anchor counts as separated, as in `TripletSelHN`.
        every: steps between two measurements; calls in between cost nothing.
    """

    def __init__(
        self, model: nn.Module, path: str | Path | None = None, *, epsilon: float = 0.01, every: int = 10
    ):
        require_type("model", model, nn.Module, 'the model comes first: Probe(model, "probe.jsonl")')
        super().__init__(every=every)
        self.watched = {
            name or type(model).__name__: part
            for name, part in model.named_modules()
            if any(True for _ in part.parameters(recurse=False))
        }
        self.epsilon = self.alarm.epsilon = epsilon
        self.path = None if path is None else Path(path)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("")

    def __call__(
        self,
        scores: Float[Tensor, "*K B B"] | Products,
        loss: Tensor | float | None = None,
        image_ids: ImageIds = None,
        *,
        images: Float[Tensor, "B d"] | None = None,
        texts: Float[Tensor, "B d"] | None = None,
    ) -> Row | None:
        """One step of the loop. Returns its measurements, or None if this step is not measured.

        `images` and `texts` are the embeddings whose products the scores are. If their gradients were kept
        (`image_emb.retain_grad()` before the backward pass), these are measured too.
        """

        def more(ids: Tensor | None) -> Numbers:
            pairs = scores.shape[-1]
            for name, rows in (("images", images), ("texts", texts)):
                if rows is not None and (rows.ndim != 2 or len(rows) != pairs):
                    raise SelhnError(
                        f"{name} must be the embeddings of the {pairs} pairs, one row each, "
                        f"got shape {tuple(rows.shape)}"
                    )
            numbers = gradient_norms(self.watched)
            if ids is not None and isinstance(scores, Tensor):
                numbers["false_negatives"] = false_negatives(scores, ids)
            return (
                numbers if images is None or texts is None else numbers | probe_embeddings(images, texts, ids)
            )

        row = self._look(scores, loss, image_ids, more)
        if row is not None and self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return row
