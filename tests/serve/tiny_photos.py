"""`selhn photos` with small models: `python tiny_photos.py photos FOLDER ...`; its other process runs this file too.

DIM=6 is another version of the model.
SLOW=0.05 makes each picture take that long, and CRASH=1 makes the process that indexes kill itself.
"""

import os
import signal
import time

import torch
from picture_cases import TinyBackbone, stand_in
from tiny import small_model

from selhn.cli import main
from selhn.pictures import Extractor, extraction
from selhn.serve import photos

torch.set_num_threads(1)


class SlowBackbone(TinyBackbone):
    def maps(self, pixels):
        if "COMPUTED" in os.environ:
            with open(os.environ["COMPUTED"], "a") as file:
                file.write("x" * len(pixels))
        if "CRASH" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(os.environ.get("SLOW", "0")) * len(pixels))
        return super().maps(pixels)


photos.MODEL_PACKAGES = ()
stand_in(lambda: small_model(dim=int(os.environ.get("DIM", "8"))), lambda: Extractor(SlowBackbone()))
extraction.FEWEST = 2

if __name__ == "__main__":
    main()
