"""The names users build on."""

import importlib
import subprocess
import sys

import pytest
from programs import run

import selhn
from selhn.losses import LOSSES

EXPORTS = {
    "selhn": """Index Metrics TripletSelHN Vocabulary __version__ adapt create_loss create_model evaluate list_losses
        list_models load_data load_model open_towers recall towers_of train""",
    "selhn.losses": """LOSSES STATISTICS AbstractLoss AnchorStatistics Learns LossEntry OfflineScores PairLabels
        Scheduled Statistic TakesGiven across_ranks create_loss hinge list_losses loss_settings register_loss """
    + " ".join(entry.loss.__name__ for entry in LOSSES.values()),
    "selhn.models": """MODELS VSE AbstractMatcher CrossAttention ModelEntry Twins VSEpp adapt create_model encode_batch
        in_eval_mode list_models load_model register_model""",
    "selhn.data": """COCO_FOLDS FORMATS Augmentation Batches Data DenseFeatures Features ImageByImage Pairs
        PocketFeatures Projection RaggedFeatures Report SomeImages Split PlannedStep TextBlocks Truth check image_blocks
        import_data load_data make_resident read_truth register_format resident_bytes with_noise write_native""",
    "selhn.pictures": """Backbone CachedFeatures EmbeddedPictures Extracted Extractor FeatureCache Form Found Indexed
        Library PictureReport Plan create_backbone default_cache embed_pictures extract_pictures find_pictures
        grid_boxes import_pictures import_rows index_pictures load_extractor open_picture picture_split pool_boxes""",
    "selhn.eval": """Comparison DirectionMetrics Intervals Metrics PairScorer QueryRanks encode_split ensemble evaluate
        folds folds_of image_row in_folds measure_split pair_attention paired_bootstrap ranks recall
        recall_from_embeddings recall_intervals region_attention require_width rerank_split score_split""",
    "selhn.training": """RECIPES Run RunConfig TrainConfig describe_recipes get_recipe list_recipes measure_runs
        open_run override resume_run run_config run_names run_seeds score_runs train""",
    "selhn.runs": """OWN LogPart Results RunFolder environment find_runs load_weights read_log
        save_weights""",
    "selhn.search": """Fit Hit Index Item Kind Query Record Reranker is_milvus is_uri""",
    "selhn.export": """Embedded MatcherTowers calibrate embeddings_of_index embeddings_of_split export_source
        export_towers towers_of write_clip_retrieval write_cutoff""",
    "selhn.towers": """AbstractTowers Cutoff Description ImageSide Parts Preparation TextSide TowerTokenizer Towers
        open_towers open_towers_named_in_file""",
    "selhn.diagnose": """Diagnosis Log Norms Plateau Probe StallAlarm Verdict Watch attention_figure diagnose epsilon_of
        from_rows gradient_norms how_it_ended judge make_alarm parameter_norms patience
        plateaus probe_embeddings probe_scores probe_split read_foreign total_norm training_figure
        verdict_figure watched_plateau""",
    "selhn.integrations": "PairLoss",
    "selhn.reproduce": "FIGURES RUNS TABLES Figure PaperRow PaperRuns Wanted describe paper_rows reproduce",
    "selhn.report": "write_report",
    "selhn.serve": "serve",
    "selhn.text": """FUNCTION_WORDS PIECES_FILE TOKENIZER_FILES VOCABULARY_FILE TokenKinds Tokenizer Vocabulary
        WordPiece check_texts has_tokenizer load_tokenizer split_words""",
}


@pytest.mark.parametrize("module", EXPORTS)
def test_exported_names(module):
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == sorted(EXPORTS[module].split())
    for name in loaded.__all__:
        assert getattr(loaded, name) is not None


def test_dir_lists_them():
    assert dir(selhn) == sorted(EXPORTS["selhn"].split())


def test_unknown_name():
    with pytest.raises(AttributeError, match="module 'selhn' has no attribute 'nonsense'"):
        selhn.nonsense  # noqa: B018


CALLED = "try:\n    selhn.train()\nexcept TypeError as error:\n    print(error)"


@pytest.mark.parametrize(
    "first",
    [
        "import sys, selhn; assert selhn.__version__",
        "import sys; from selhn.training import get_recipe; import selhn",
    ],
)
def test_import_does_not_wait_for_torch_and_train_can_be_called_whatever_was_imported_first(first):
    code = f"{first}\nprint('torch' in sys.modules)\n{CALLED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False" if first.endswith("__version__") else "True")
    assert "train() missing 3 required positional arguments" in done.stdout


def test_a_loss_can_be_compiled_in_one_graph():
    # In a process of its own: the shape checks of this test run and the compiler do not go together.
    code = """
import torch
from selhn.losses import LOSSES, create_loss

def found(call, *inputs):
    inputs = [one.detach().clone().requires_grad_() for one in inputs]
    value = call(*inputs, image_ids=torch.tensor([0, 1, 2, 3, 3, 5]))
    value.backward()
    return value.detach(), *(one.grad for one in inputs)

pairs = torch.nn.functional.normalize(torch.randn(2, 6, 8, dtype=torch.float64), dim=2)
derived = set()
for name in LOSSES:
    torch.compiler.reset()  # a loss is compiled on its own, not as the eighth version of another
    loss = create_loss(name)
    for call, inputs in ((loss, pairs[0, None] @ pairs[1].T), (loss.from_embeddings, pairs)):
        # The derivative of a formula is compiled with the matrix, that of statistics from embeddings once for each set.
        part = tuple(loss.needs) if call == loss.from_embeddings else name
        compiled = torch.compile(call, fullgraph=True, backend="eager" if part in derived else "aot_eager")
        derived.add(part)
        for ours, theirs in zip(found(compiled, *inputs), found(call, *inputs), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, msg=f"{name} {call}")
print("compiled")
"""
    done = run("-W", "ignore", "-c", code)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]
