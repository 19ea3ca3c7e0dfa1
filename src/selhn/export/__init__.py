"""What others can use without selhn: towers as ONNX files."""

from selhn.export.towers import export_towers

__all__ = ["export_towers"]
