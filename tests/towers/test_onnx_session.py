import os
import subprocess
import sys


def test_onnxruntime_reports_nothing(tmp_path):
    code = "from selhn.towers.onnx_session import import_onnxruntime; print(import_onnxruntime().__name__)"
    # Nor on a machine of a CI, where it would report nothing anyway.
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH")}
    places = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | places, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "onnxruntime"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
