"""Triton kernels, each imported by the operation in `ops/` or `losses/` that it is a second form of."""
