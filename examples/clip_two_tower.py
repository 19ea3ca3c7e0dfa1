"""SelHN in a CLIP-style loop: two towers from `transformers`, one line changed.

The model is a tiny CLIP with random weights (nothing is downloaded) and the pictures are coloured squares, so that it
trains in seconds; with a real checkpoint the loop is the same.

    python examples/clip_two_tower.py                 about 20 seconds on two cores
    python examples/clip_two_tower.py --loss hn       the same with plain hardest negatives: it stays at 0.200
"""

import argparse

import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

import selhn

COLOURS = torch.tensor(
    [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1.0], [0, 0, 0]]
)
CELLS, CELL_PIXELS, START, END = 4, 16, 0, 63


def make_pairs(num_pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures (B, 3, 32, 32) of four coloured squares, and captions (B, 6): start, a word for each square, end."""
    colours = torch.randint(0, len(COLOURS), (num_pairs, CELLS), generator=generator)
    squares = COLOURS[colours].reshape(num_pairs, 2, 2, 3).permute(0, 3, 1, 2)
    pictures = squares.repeat_interleave(CELL_PIXELS, 2).repeat_interleave(CELL_PIXELS, 3)
    pictures = pictures + 0.1 * torch.randn(pictures.shape, generator=generator)
    words = 1 + len(COLOURS) * torch.arange(CELLS) + colours  # red up left is one word, red up right another
    edge = torch.ones(num_pairs, 1, dtype=torch.long)
    return pictures, torch.cat([START * edge, words, END * edge], dim=1)


def tiny_clip() -> CLIPModel:
    """CLIP, only small: 2 layers of 64 in each tower."""
    tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return CLIPModel(
        CLIPConfig(
            text_config={
                **tower,
                "vocab_size": 64,
                "max_position_embeddings": 8,
                "bos_token_id": START,
                "eos_token_id": END,
            },
            vision_config={**tower, "image_size": 32, "patch_size": 8},
            projection_dim=64,
        )
    )


def main() -> None:
    """Train, and print what is found."""
    parser = argparse.ArgumentParser(description="SelHN in a CLIP-style two-tower loop.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--loss", default="selhn", choices=selhn.list_losses())
    arguments = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model, loss_fn = tiny_clip(), selhn.create_loss(arguments.loss)
    optimizer = torch.optim.AdamW([*model.parameters(), *loss_fn.parameters()], lr=1e-3)
    test_pictures, test_tokens = make_pairs(256, generator)
    for step in range(arguments.steps + 1):
        pictures, tokens = make_pairs(128, generator)
        out = model(pixel_values=pictures, input_ids=tokens)
        # CLIP's own loss would be cross-entropy on out.logits_per_image. The towers, the optimiser and the rest stay.
        loss = loss_fn(out.image_embeds @ out.text_embeds.T)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(1, arguments.steps // 6) == 0:
            with torch.no_grad():
                test = model(pixel_values=test_pictures, input_ids=test_tokens)
            metrics = selhn.recall(test.image_embeds @ test.text_embeds.T, image_of_text=torch.arange(256))
            print(f"step {step:4}  loss/anchor {loss.item():.4f}  {metrics}")


if __name__ == "__main__":
    main()
