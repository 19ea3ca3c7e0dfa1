"""Unit length."""

import torch
from jaxtyping import Float
from torch import Tensor


def unit(vectors: Float[Tensor, "*K d"], epsilon: float = 1e-8) -> Float[Tensor, "*K d"]:
    """`x / (|x| + epsilon)`, in float32 or wider; a zero vector stays zero, with finite gradients."""
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return vectors / (torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) + epsilon)
