"""Models to towers, which need no torch, and embeddings in clip-retrieval's layout."""

from selhn.export.calibration import calibrate, write_cutoff
from selhn.export.clip_retrieval import embeddings_of_index, embeddings_of_split, write_clip_retrieval
from selhn.export.matcher_towers import MatcherTowers, towers_of
from selhn.export.sources import export_source
from selhn.export.towers import export_towers
from selhn.search.embedded import Embedded

__all__ = ["Embedded", "MatcherTowers", "embeddings_of_index", "embeddings_of_split", "export_source"]
__all__ += ["calibrate", "export_towers", "towers_of", "write_clip_retrieval", "write_cutoff"]
