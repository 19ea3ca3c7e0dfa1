"""The axes of every tensor in selhn, and the few words that settings are made of.

Signatures carry their axes with jaxtyping, for example `scores: Float[Tensor, "I T"]`:

    B     pairs in a batch; pair i is image i with text i
    I, T  images and texts that are scored against each other
    M     regions of an image            N  tokens of a text
    F     width of a region feature      d  width of the joint embedding
    k     hits returned for a query      *K  any leading axes, such as the steps of a model that scores in steps

`scores` is always `[image, text]`. The annotations are checked while the tests run and cost nothing otherwise.
"""

from typing import Literal

Reduction = Literal["mean", "sum", "none"]
"""What a loss does with its 2B anchors."""

Variant = Literal["hinge", "nca"]
"""How a triplet becomes a number: `[s_n - s_p + margin]+`, or the softmax form `-log softmax(s_p, s_n)[0]`."""
