"""The networks of a model as torch modules with one output, and as ONNX graphs of them.

from pixels    pixels (B, 3, H, W) -> image_vector (B, d), part_vectors (B, M - 1, d)
from regions   regions (I, M, F), region_mask (I, M) -> image_vector (I, d)
from tokens    tokens (T, N), token_mask (T, N) -> text_vector (T, d)
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from selhn.base.errors import MissingExtra, SelhnError, pip_install
from selhn.export.onnx_gru import translations
from selhn.models import AbstractMatcher
from selhn.pictures.backbones import Backbone, EfficientNetLite
from selhn.pictures.extractor import Extractor, box_shares, grid_boxes
from selhn.pictures.two_towers import LIBRARY_ERRORS
from selhn.towers import Preparation
from selhn.towers.onnx_session import import_onnxruntime

BESIDE = 2**24
"""Networks of more bytes have their weights in a file beside them, which is mapped and not read."""


@dataclass(frozen=True)
class Network:
    """A module with names for its inputs and outputs, and an input to trace it with.

    Args:
        axes: names of the first axes of all inputs and outputs that may have any length, the items first.
    """

    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: tuple[str, ...]
    sample: tuple[Tensor, ...]


class Side(nn.Module):
    """The image side of a model, from regions, or its text side, from tokens."""

    def __init__(self, model: AbstractMatcher, kind: Literal["image", "text"]):
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, items: Shaped[Tensor, "n ..."], mask: Bool[Tensor, "n _"]) -> Float[Tensor, "n d"]:
        encode = self.model.encode_images if self.kind == "image" else self.model.encode_texts
        return encode(items, mask)


class FromPixels(nn.Module):
    """A vision model, the means of its map over the grid of the extractor, and the image side of a model.

    With `parts` it also gives the vector of each cell as if it were the whole picture.
    """

    shares: Tensor

    def __init__(self, model: AbstractMatcher, extractor: Extractor, parts: bool = False):
        super().__init__()
        if extractor.detector is not None:
            raise SelhnError(
                f"the regions of {extractor.detector_name} cannot be exported: take an extractor with a grid"
            )
        self.model, self.extractor, self.parts = model, extractor, parts
        self.backbone = as_module(extractor.backbone)
        pixels = torch.zeros(1, 3, *preparation_of(extractor).size)
        with torch.no_grad():
            height, width = self.backbone(pixels).shape[2:]
        self.register_buffer("shares", box_shares(grid_boxes(extractor.cells), height, width).float())

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> tuple[Float[Tensor, "..."], ...]:
        regions = self.extractor.projected(self.shares @ self.backbone(pixels).flatten(2).transpose(1, 2))
        mask = torch.ones_like(regions[..., 0], dtype=torch.bool)
        whole = self.model.encode_images(regions, mask)
        if not self.parts:
            return (whole,)
        cells = regions[:, 1:].flatten(0, 1)[:, None]
        vectors = self.model.encode_images(cells, torch.ones_like(cells[..., 0], dtype=torch.bool))
        return whole, vectors.unflatten(0, (-1, regions.shape[1] - 1))


class _Maps(nn.Module):
    """A backbone with the networks that it has."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.backbone = backbone
        self.networks = nn.ModuleList(own for own in vars(backbone).values() if isinstance(own, nn.Module))

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        return self.backbone.maps(pixels)


def as_module(backbone: Backbone) -> nn.Module:
    """A vision model as one module on the CPU, from pixels to its map."""
    if isinstance(backbone, EfficientNetLite):
        network = EfficientNetLite(backbone.number, eager=True).network
        assert network is not None
        return network.to(memory_format=torch.contiguous_format)
    return _Maps(backbone)


def preparation_of(extractor: Extractor) -> Preparation:
    """How pictures are prepared for an extractor."""
    found = extractor.backbone.prepare
    if not isinstance(found, Preparation):
        raise SelhnError(
            f"{extractor.backbone.name} prepares pictures by a function of its own, which cannot be exported: give it "
            "a selhn.towers.Preparation"
        )
    return found


def pixels_to_vector(model: AbstractMatcher, extractor: Extractor, parts: bool = False) -> Network:
    """The image side of a model after the vision model of an extractor; see `FromPixels`."""
    module = FromPixels(model, extractor, parts)
    outputs = ("image_vector", "part_vectors") if parts else ("image_vector",)
    pixels = torch.randn(2, 3, *preparation_of(extractor).size, generator=torch.Generator().manual_seed(0))
    return Network(module, ("pixels",), outputs, ("pictures",), (pixels,))


def write_network(network: Network, file: Path) -> None:
    """Write a network as an ONNX model, and large weights beside it."""
    onnx = imported_onnx()
    graph = _graph(network)
    large = graph.ByteSize() > BESIDE
    weights = f"{file.stem}.weights"
    onnx.save_model(
        graph,
        str(file),
        save_as_external_data=large,
        location=weights if large else None,
        size_threshold=1024,
    )


def imported_onnx() -> Any:
    """The package that writes the files, if all that exporting needs is installed."""
    try:
        import onnx
        import onnxscript  # noqa: F401

        import_onnxruntime()
    except ImportError as missing:
        raise MissingExtra(f"ONNX files need {missing.name}: {pip_install('onnx')}") from None
    return onnx


def _graph(network: Network) -> Any:
    """The ONNX model, for any number of items and places."""
    sizes = [
        dict.fromkeys(range(min(len(network.axes), value.ndim)), torch.export.Dim.DYNAMIC)
        for value in network.sample
    ]
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                network.module.eval(),
                network.sample,
                dynamo=True,
                dynamic_shapes=tuple(sizes),
                input_names=list(network.inputs),
                output_names=list(network.outputs),
                custom_translation_table=dict(translations()),
                # No optimisation: it would turn the 1e-8 of unit vectors into 0; runtimes optimise on
                # load.
                optimize=False,
                verbose=False,
            )
    except (*LIBRARY_ERRORS, torch.onnx.OnnxExporterError) as error:
        why = str(error.__cause__ or error).splitlines()[0][:200]
        raise SelhnError(
            f"torch cannot write the network from {network.inputs[0]} as ONNX ({why}): "
            "try another version of torch, or export from regions (--extractor none)"
        ) from error
    assert program is not None
    graph = program.model_proto
    _forget_sample(graph, network.axes)
    return graph


def _forget_sample(graph: Any, axes: Sequence[str]) -> None:
    """Remove shapes of the sample, and where in which file of this machine a node was written."""
    del graph.graph.value_info[:]
    for part in (graph, graph.graph, *graph.graph.node):
        del part.metadata_props[:]
        part.doc_string = ""
    for value in (*graph.graph.input, *graph.graph.output):
        for dimension, name in zip(value.type.tensor_type.shape.dim, axes):
            if dimension.dim_param:
                dimension.dim_param = name


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about its own internals and about missing vision packages."""
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "torch.onnx._internal.exporter._registration")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
