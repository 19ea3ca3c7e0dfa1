"""Pictures to try things on, with captions; `annotations.json` names the licence and origin of each."""

from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
ANNOTATIONS = PICTURES / "annotations.json"
