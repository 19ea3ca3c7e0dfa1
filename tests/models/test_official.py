import copy
import inspect
import io
import os
import pickle
import zipfile
from argparse import Namespace

import pytest
import torch
from model_cases import BERT, FIXED_REGIONS, make_batch, make_model

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.types import Batch
from selhn.losses import BCEMax, TripletHN
from selhn.models import MODELS, create_model
from selhn.models.matcher import taken_side
from selhn.models.official import load_official
from selhn.ops import Fragments, Pairing, unit
from selhn.text.concept_graph import ConceptGraph

SIZES = ("dim", "feature_dim", "word_dim", "vocab_size", "sim_dim", "num_concepts", "concept_dim", "heads", "blocks",
         "kernels", "hidden")  # fmt: skip
WEIGHTS = ["image.fc.weight", "text.words.embed.weight"]
VSEPP = [("vsepp_cosine", "vsepp"), ("vsepp_no_imgnorm", "vsepp"), ("vsepp_order", "vsepp_order")]
FRAGMENTS = {
    "scan_t2i_avg": "scan_t2i_avg",
    "scan_t2i_lse": "scan_t2i_lse",
    "scan_i2t_avg": "scan_i2t_avg",
    "scan_i2t_lse": "scan_i2t_lse",
    "bfan_equal": "bfan_equal",
    "bfan_prob": "bfan_prob",
    "sgraf_sgr": "sgr",
    "sgraf_saf": "saf",
    "imram_text": "imram_text",
    "imram_image": "imram_image",
    "imram_full": "imram",
    "camp_gated": "camp",
    "camp_stage1": "camp_stage1",
    "naaf_test_t0": "naaf",
    "naaf_test_thr": "naaf",
    "cmcan": "cmcan",
    "gsmn_dense": "gsmn_dense",
    "gsmn_sparse": "gsmn_sparse",
}


@pytest.fixture
def recorded(golden):
    """State dict, arrays as tensors, and configuration of a golden file."""

    def load(name):
        arrays, config = golden(name)
        state = {
            key.removeprefix("state/"): value for key, value in arrays.items() if key.startswith("state/")
        }
        return (
            state,
            {key: torch.from_numpy(value) for key, value in arrays.items() if "/" not in key},
            config,
        )

    return load


def first_of(lengths, like):
    """A mask with the shape of the first two axes of another array."""
    return torch.arange(like.shape[1]) < lengths[:, None]


def close(ours, theirs, atol=2e-6, rtol=1e-5):
    torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=rtol, atol=atol)


def encoded(model, arrays):
    """Recorded images, those of VSE++ with one region each, and texts."""
    regions = arrays["regions"].to(next(model.parameters()).dtype)
    side = {of: taken_side(model, arrays, of) for of in ("images", "texts")}
    images = model.encode_images(regions if regions.ndim == 3 else regions[:, None], **side["images"])
    return images, model.encode_texts(
        arrays["tokens"], first_of(arrays["lengths"], arrays["tokens"]), **side["texts"]
    )


def settings_of(name, config):
    """The recorded settings of a model, without the sizes: those are read from the weights."""
    known = inspect.signature(MODELS[name].build).parameters
    return {key: config[key] for key in config if key in known and key not in (*SIZES, "dropout")}


def check_loss_and_gradients(model, arrays, weights, atol=1e-5, rtol=1e-4):
    """The recorded loss of the first pairs, as many as its name says, and two gradients of it."""
    name = next(key for key in arrays if key.startswith("thn_sum_"))
    pairs = int(name.rsplit("x", 1)[1])
    losses, gradients = [], []
    for own in (model, copy.deepcopy(model).double()):
        scores = own.score(*encoded(own, arrays))
        losses.append(TripletHN.official()(scores[:pairs, :pairs]))
        gradients.append(torch.autograd.grad(losses[-1], [own.get_parameter(weight) for weight in weights]))
    close(losses[0], arrays[name], atol=1e-5)
    for ours, exact, key in zip(*gradients, ("grad_img_fc", "grad_embed"), strict=True):
        error = (ours - exact).abs().max()
        if error > 3 * atol:  # with some weights float32 alone is less exact than the tolerance
            assert error < rtol * exact.abs().max()
            ours = exact
        close(ours, arrays[key], atol, rtol)


def check_sizes(model, config):
    known = inspect.signature(MODELS[model.name].build).parameters
    sizes = [key for key in SIZES if key in config and key in known]
    assert {key: model.settings[key] for key in sizes} == {key: config[key] for key in sizes}


@pytest.mark.parametrize(("file", "name"), VSEPP)
def test_vsepp(recorded, file, name):
    state, arrays, config = recorded(file)
    model = load_official(name, state, **{key: config[key] for key in ("measure", "use_abs", "no_imgnorm")})
    assert not model.training
    check_sizes(model, config)
    images, texts = encoded(model, arrays)
    scores = model.score(images, texts)
    close(images, arrays["image_emb"])
    close(texts, arrays["text_emb"])
    close(scores, arrays["scores"])
    check_loss_and_gradients(model, arrays, ["fc.weight", "embed.weight"])


def test_vsepp_in_double_precision(recorded):
    state, arrays, _ = recorded("vsepp_order")
    model = load_official("vsepp_order", state).double()
    close(model.score(*encoded(model, arrays)), arrays["scores"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("file", ["vsrn_f30k", "vsrn_coco"])
def test_vsrn(recorded, file):
    state, arrays, config = recorded(file)
    model = load_official("vsrn", state)
    check_sizes(model, config)
    assert model.settings["graph_layers"] == config["gcn_layers"]
    assert model.settings["final_bn"] == config["final_bn"] != model.reasoning.first_norm
    images, texts = encoded(model, arrays)
    scores = model.score(images, texts)
    every = torch.ones(arrays["regions"].shape[:2], dtype=torch.bool)
    close(model.reasoning(arrays["regions"], every), arrays["region_emb"])
    close(images, arrays["image_emb"])
    close(texts, arrays["text_emb"])
    close(scores, arrays["scores"])
    check_loss_and_gradients(model, arrays, ["reasoning.fc.weight", "embed.weight"])
    model = model.double()
    close(model.score(*encoded(model, arrays)), arrays["scores"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("file", ["cvse_f30k", "cvse_coco"])
def test_cvse(recorded, file, monkeypatch):
    state, arrays, config = recorded(file)
    inputs = arrays["concept_inputs"]
    model = load_official("cvse", state, concept_inputs=inputs, **settings_of("cvse", config))
    check_sizes(model, config)
    assert (model.settings["num_concepts"], model.settings["concept_dim"]) == inputs.shape
    assert model.settings["num_regions"] == arrays["regions"].shape[1]
    mask, labels = first_of(arrays["lengths"], arrays["tokens"]), arrays["concept_labels"]
    concepts = model.concepts()
    close(concepts, arrays["concept_basis"])
    images = model.image_levels(arrays["regions"], None, concepts)
    texts = model.text_levels(arrays["tokens"], mask, labels, concepts)
    for levels, side in ((images, "image"), (texts, "text")):
        close(levels.weights, arrays[f"concept_weights_{side}"])
        kinds = {
            "instance": levels.instance,
            "consensus": levels.consensus,
            "fused": levels.fused(model.fuse_alpha),
        }
        for kind, theirs in zip(config["emb_order"], arrays[f"{side}_emb"], strict=True):
            close(kinds[kind], theirs)
    scores = model.score(
        model.encode_images(arrays["regions"]), model.encode_texts(arrays["tokens"], mask, concepts=labels)
    )
    close(scores, arrays["scores"])
    check_loss_and_gradients(model, {**arrays, "concepts": labels}, WEIGHTS)
    graph = ConceptGraph(
        tuple((str(concept),) for concept in range(len(labels[0]))),
        arrays["concept_counts"],
        arrays["cooccurrence"],
    )
    close(graph.adjacency(config["adjacency_threshold"]), model.concepts.adjacency)
    # The losses, recorded with everything in evaluation mode.
    monkeypatch.setattr("selhn.models.cvse.TRAIN_ALPHA", config["fuse_alpha"])
    model.training = True
    pairs = int(next(key for key in arrays if key.startswith("loss_total_")).rsplit("x", 1)[1])
    regions = arrays["regions"][:pairs]
    batch = Batch(regions, torch.ones(regions.shape[:2], dtype=torch.bool), arrays["tokens"][:pairs], mask[:pairs],
                  torch.arange(pairs), {"concepts": labels[:pairs]})  # fmt: skip
    match, loss = model(batch), TripletHN.official()
    *weights, distance_weight = config["loss_weights"]
    parts = [loss(match.scores[first]) for first in (0, weights[0], sum(weights[:2]))]
    ours = torch.stack([*parts, match.aux["concepts"] / distance_weight])
    close(ours, arrays[f"loss_parts_{pairs}x{pairs}"], atol=1e-5)
    close(loss(match.scores) + match.aux["concepts"], arrays[f"loss_total_{pairs}x{pairs}"], atol=1e-5)


def test_what_a_file_of_cvse_lacks(recorded, tmp_path):
    state, arrays, _ = recorded("cvse_f30k")
    with pytest.raises(SelhnError, match="lacks"):
        load_official("cvse", state)
    with pytest.raises(SelhnError, match="shape"):
        load_official("cvse", state, concept_inputs=arrays["concept_inputs"][1:])
    sides = ("img_enc.", "txt_enc.", "V_self_atten_enhance.", "T_self_atten_enhance.", "V_consensus_level_embedding.",
             "T_consensus_level_embedding.", "C_GCN.", "Multi_feature_fusing.")  # fmt: skip
    write_checkpoint(tmp_path / "a.pth", state, sides=sides, Concept_label_ratio=0.25, use_BatchNorm=True)
    model = load_official("cvse", tmp_path / "a.pth", concept_inputs=arrays["concept_inputs"])
    assert model.label_ratio == 0.25
    close(model.concepts(), arrays["concept_basis"])


def test_a_file_of_vsrn(recorded, tmp_path):
    """The captioner is not in it; all else must be."""
    state, arrays, _ = recorded("vsrn_coco")
    write_checkpoint(tmp_path / "a.pth", state, measure="cosine")
    close(load_official("vsrn", tmp_path / "a.pth").encode_images(arrays["regions"]), arrays["image_emb"])
    with pytest.raises(SelhnError, match="final_bn"):
        load_official("vsrn", state, final_bn=True)
    with pytest.raises(SelhnError, match="region_rnn"):
        load_official("vsrn", {key: value for key, value in state.items() if "img_rnn.weight_hh" not in key})


@pytest.mark.parametrize(("file", "name"), FRAGMENTS.items())
def test_cross_attention(recorded, file, name):
    state, arrays, config = recorded(file)
    model = load_official(name, state, **settings_of(name, config))
    check_sizes(model, config)
    if name in FIXED_REGIONS:
        assert model.settings["num_regions"] == arrays["regions"].shape[1]
    if name in ("sgr", "cmcan"):
        assert model.settings["steps"] == config["sgr_steps" if name == "sgr" else "layers"]
    images, texts = encoded(model, arrays)
    scores = model.score(images, texts)
    close(images.vectors, arrays["region_emb"])
    close(texts.vectors, arrays["word_emb"][:, : texts.mask.shape[1]])
    close(scores, arrays["scores"])
    # The cosines of GSMN's small blocks are ill-conditioned.
    tolerance = {"atol": 2e-4, "rtol": 1e-3} if name.startswith("gsmn") else {}
    check_loss_and_gradients(model, arrays, WEIGHTS, **tolerance)


@pytest.mark.parametrize(("file", "name"), FRAGMENTS.items())
def test_cross_attention_in_double_precision(recorded, file, name):
    state, arrays, config = recorded(file)
    model = load_official(name, state, **settings_of(name, config)).double()
    close(model.score(*encoded(model, arrays)), arrays["scores"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("file", ["naaf_train", "naaf_train_small"])
def test_naaf_in_training(recorded, file):
    """The threshold changes with every text, and with it the scores of the next."""
    _, arrays, config = recorded(file)
    vectors = {key: arrays[key].double().requires_grad_() for key in ("region_emb", "word_emb")}
    settings = {key: config[key] for key in ("smooth", "alpha", "min_words")}
    for ours in ("threshold", "threshold_safe"):
        settings[ours] = config[f"{ours}_before"]
    sizes = {"vocab_size": 1, "feature_dim": 1, "word_dim": 1, "dim": vectors["word_emb"].shape[2]}
    model = create_model("naaf", **sizes, **settings).double().train()
    images = Fragments.of(
        vectors["region_emb"], torch.ones(vectors["region_emb"].shape[:2], dtype=torch.bool)
    )
    texts = Fragments.of(vectors["word_emb"], first_of(arrays["lengths"], vectors["word_emb"]))
    before = model.state_dict()["head.thresholds.training_value"].clone()
    close(model.head.mine(images, texts), arrays["threshold_per_text"], atol=1e-9, rtol=0)
    close(model.head.thresholds.both(), arrays["thresholds_after"], atol=1e-9, rtol=0)
    model.head.thresholds.store(torch.tensor([before, config["threshold_safe_before"]]))
    scores = model.score(images, texts)
    close(scores, arrays["scores"], atol=1e-9, rtol=0)
    close(model.head.thresholds.both(), arrays["thresholds_after"], atol=1e-9, rtol=0)
    loss = TripletHN.official(margin=config["margin"])(scores)
    close(loss, arrays["loss_max_violation"], atol=1e-9, rtol=0)
    for key, ours in zip(vectors, torch.autograd.grad(loss, list(vectors.values())), strict=True):
        close(ours.float(), arrays[f"grad_{key}"], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("file", ["imram_text", "imram_image", "imram_full"])
def test_steps_of_imram(recorded, file):
    state, arrays, config = recorded(file)
    model = load_official(FRAGMENTS[file], state, **settings_of(FRAGMENTS[file], config))
    images, texts = encoded(model, arrays)
    for direction, key in (("t2i", "scores_text_steps"), ("i2t", "scores_image_steps")):
        assert (key in arrays) == (direction in model.head.memories)
    for direction, side in Pairing(images, texts).sides(model.head.directions):
        by_step, _ = model.head.memories[direction](side)
        key = "scores_text_steps" if direction == "t2i" else "scores_image_steps"
        assert len(by_step) == config["steps"]
        close(by_step if direction == "t2i" else by_step.transpose(1, 2), arrays[key])


def test_cross_entropy_of_camp(recorded):
    state, arrays, config = recorded("camp_gated")
    model = load_official("camp", state, **settings_of("camp", config))
    name = next(key for key in arrays if key.startswith("bce_max_"))
    pairs = int(name.rsplit("x", 1)[1])
    close(BCEMax.official()(model.score(*encoded(model, arrays))[:pairs, :pairs]), arrays[name], atol=1e-5)


def test_camp_without_gates_is_its_first_stage(recorded):
    state, arrays, config = recorded("camp_stage1")
    model = load_official("camp", state, padded_length=config["padded_length"])
    assert not model.settings["gated"]
    close(model.score(*encoded(model, arrays)), arrays["scores"])


def test_files_of_imram_camp_and_naaf(recorded, tmp_path):
    path = tmp_path / "model_best.pth.tar"
    state, arrays, config = recorded("imram_text")
    tensors = {"module." + key: torch.as_tensor(value) for key, value in state.items()}
    options = {
        "model_mode": "text_IMRAM",
        "iteration_step": config["steps"],
        "lambda_softmax": config["smooth"],
    }
    options |= {"no_IMRAM_norm": not config["memory_norm"]}
    torch.save({"model": tensors, "opt": Namespace(**options)}, path)
    model = load_official("imram_text", path)
    close(model.score(*encoded(model, arrays)), arrays["scores"])
    with pytest.raises(SelhnError):
        load_official("imram_image", path)
    state, arrays, config = recorded("naaf_test_thr")
    state["txt_enc.embed.glove.weight"] = state.pop("txt_enc.embed.weight")
    options = {
        "lambda_softmax": config["smooth"],
        "thres": 0.3,
        "thres_safe": config["threshold_safe"],
        "alpha": 1.5,
    }
    write_checkpoint(path, state, **options)
    model = load_official("naaf", path, intra_lambda=config["intra_lambda"])  # a constant of the program
    assert model.head.thresholds.both().tolist() == [0.3, config["threshold_safe"]]
    close(model.score(*encoded(model, arrays)), arrays["scores"])
    state, arrays, config = recorded("camp_gated")
    write_checkpoint(path, state, sides=("img_enc.", "txt_enc.", "criterion.sim."), measure="gate_fusion_new")
    model = load_official("camp", path)
    close(model.score(*encoded(model, arrays)), arrays["scores"])


def test_files_of_cross_attention(recorded, tmp_path):
    path = tmp_path / "model_best.pth.tar"
    for file, name in (("scan_i2t_lse", "scan_i2t_lse"), ("sgraf_sgr", "sgr")):
        state, arrays, config = recorded(file)
        sides = ("img_enc.", "txt_enc.", "sim_enc.") if name == "sgr" else ("img_enc.", "txt_enc.")
        options = {"module_name": "SGR"}
        if name != "sgr":
            options = {"lambda_softmax": config["smooth"], "lambda_lse": config["lambda_lse"]}
            options |= {"cross_attn": "i2t", "agg_func": "LogSumExp"}
        write_checkpoint(path, state, sides=sides, **options)
        # SGRAF's program has no option for the smoothness.
        model = load_official(name, path, **({"smooth": config["smooth"]} if name == "sgr" else {}))
        close(model.score(*encoded(model, arrays)), arrays["scores"])
    with pytest.raises(SelhnError):
        load_official("saf", path)


def test_options_of_cross_attention(recorded):
    state, *_ = recorded("scan_t2i_lse")
    assert load_official("scan_t2i_lse", state, lambda_softmax=11, lambda_lse=20).head.smooth == 11
    assert load_official("scan_t2i_lse", state, smooth=12.0, lambda_lse=20).head.lambda_lse == 20
    with pytest.raises(SelhnError, match="cross_attn"):
        load_official("scan_t2i_lse", state, cross_attn="i2t")
    with pytest.raises(SelhnError, match="raw_feature_norm"):
        load_official("bfan_equal", state, raw_feature_norm="softmax")
    with pytest.raises(SelhnError, match="image.pool"):
        load_official("saf", state)
    state, *_ = recorded("sgraf_saf")
    for option in ({"lambda_softmax": 4.0}, {"thres": 0.3}):  # of SCAN and of NAAF
        with pytest.raises(NotFound):
            load_official("saf", state, **option)


def test_vse_infty_images(recorded):
    state, arrays, config = recorded("vse_infty_image")
    model = load_official("vse_infty", state)
    assert model.image.fc.weight.shape == (config["dim"], config["feature_dim"])
    mask = first_of(arrays["lengths"], arrays["regions"])
    close(model.encode_images(arrays["regions"], mask), arrays["embedding"])
    close(model.image.gpo.weights(arrays["lengths"], mask.shape[1]), arrays["pool_weights"][:, :, 0])


def test_one_side_alone_encodes_only_that(recorded, tmp_path):
    state, arrays, _ = recorded("vse_infty_image")
    model = load_official("vse_infty", state)
    with pytest.raises(SelhnError, match="both sides"):
        model.encode_texts(torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(SelhnError, match="saved"):
        model.save(tmp_path / "model")


def test_vse_infty_text_head(recorded):
    state, arrays, config = recorded("vse_infty_text_head")
    bert = {**BERT, "hidden_size": config["hidden"], "num_attention_heads": 1}
    model = load_official("vse_infty_bert", state, bert=bert)
    mask = first_of(arrays["lengths"], arrays["bert_last_hidden"])
    close(unit(model.text.gpo(model.text.fc(arrays["bert_last_hidden"]), mask)), arrays["embedding"])
    close(model.text.gpo.weights(arrays["lengths"], mask.shape[1]), arrays["pool_weights"][:, :, 0])
    with pytest.raises(SelhnError):
        load_official(
            "vse_infty_bert",
            {**state, "txt_enc.bert.embeddings.LayerNorm.weight": state["txt_enc.linear.bias"]},
        )


def their_state(model):
    """A state dict of ours under the authors' names."""
    names = [
        ("text.words.", "txt_enc."),
        ("text.fc.", "txt_enc.linear."),
        ("text.", "txt_enc."),
        ("image.", "img_enc."),
        (".gpo.", ".gpool."),
    ]
    state = {}
    for key, value in model.state_dict().items():
        for ours, theirs in names:
            key = key.replace(ours, theirs)
        if ".back." in key:
            key = key.replace(".back.", ".") + "_reverse"
        state[key.replace(".ahead.", ".")] = value
    return state


def test_whole_models(recorded):
    batch = make_batch()
    for name, settings in (("vse_infty", {}), ("vse_infty_bert", {"bert": {"num_attention_heads": 2}})):
        model = make_model(name)
        state = their_state(model)
        assert "img_enc.gpool.gru.weight_ih_l0_reverse" in state
        if name == "vse_infty_bert":
            state["txt_enc.bert.pooler.dense.weight"] = torch.zeros(16, 16)
            state["txt_enc.bert.embeddings.position_ids"] = torch.arange(32)[None]
        assert torch.equal(load_official(name, state, **settings)(batch).scores, model(batch).scores)


def write_checkpoint(path, state, parallel=False, sides=("img_enc.", "txt_enc."), **options):
    parts = [
        {
            ("module." if parallel else "") + key.removeprefix(side): torch.as_tensor(state[key])
            for key in state
            if side in key
        }
        for side in sides
    ]
    torch.save({"epoch": 3, "model": parts, "best_rsum": 1.0, "opt": Namespace(**options), "Eiters": 9}, path)


@pytest.mark.parametrize("parallel", [False, True])
def test_the_authors_file(recorded, tmp_path, parallel):
    state, arrays, config = recorded("vsepp_no_imgnorm")
    path = tmp_path / "model_best.pth.tar"
    options = {key: config[key] for key in ("measure", "no_imgnorm")}
    write_checkpoint(path, state, parallel, **options, learning_rate=0.0002)
    model = load_official("vsepp", str(path))
    close(model.encode_images(arrays["regions"][:, None]), arrays["image_emb"])
    write_checkpoint(path, their_state(make_model("vse_infty")), parallel)
    batch = make_batch()
    assert torch.equal(load_official("vse_infty", path)(batch).scores, make_model("vse_infty")(batch).scores)


def test_options_that_say_another_model(recorded, tmp_path):
    state, *_ = recorded("vsepp_order")
    path = tmp_path / "order.pth.tar"
    write_checkpoint(path, state, measure="order", use_abs=True)
    with pytest.raises(SelhnError, match="measure"):
        load_official("vsepp", path)
    assert load_official("vsepp_order", path).order
    with pytest.raises(SelhnError, match="use_abs"):
        load_official("vsepp", state, use_abs=True)
    with pytest.raises(SelhnError, match="norm"):
        load_official("vse_infty", state, no_txtnorm=True)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


def test_a_file_with_code_in_it_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": [{}, {}], "opt": Bomb()}, "bomb.pth")
    with open("bomb.pkl", "wb") as file:
        pickle.dump(Bomb(), file)
    for path in ("bomb.pth", "bomb.pkl"):
        with pytest.raises(SelhnError, match="more than weights"):
            load_official("vsepp", path)
    assert not (tmp_path / "exploded").exists()


def test_files_that_are_no_checkpoint(tmp_path):
    with pytest.raises(NotFound):
        load_official("vsepp", tmp_path / "nowhere.pth")
    path = tmp_path / "cut.pth"
    buffer = io.BytesIO()
    torch.save({"model": [{"fc.weight": torch.zeros(50, 50)}, {}]}, buffer)
    path.write_bytes(buffer.getvalue()[:3000])
    with pytest.raises(Damaged):
        load_official("vsepp", path)
    path.write_bytes(b"")
    with pytest.raises(Damaged):
        load_official("vsepp", path)
    torch.save([1, 2, 3], path)
    with pytest.raises(Damaged, match="2 state dicts"):
        load_official("vsepp", path)


def in_file(path, change, recorded, **how):
    """The file of a model with some of its tensors changed."""
    state, *_ = recorded("vsepp_cosine")
    tensors = {key: torch.as_tensor(value) for key, value in state.items()}
    tensors.update(change(tensors))
    parts = [
        {key.removeprefix(side): tensors[key] for key in tensors if side in key}
        for side in ("img_enc.", "txt_enc.")
    ]
    torch.save({"model": parts}, path, **how)


WORDS, FC = "txt_enc.embed.weight", "img_enc.fc.weight"


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda state: {WORDS: torch.zeros(1).expand(10**6, 300)},
        lambda state: {WORDS: torch.zeros(10**4).as_strided((10**4, 10**4), (0, 1))},
        lambda state: {WORDS: torch.zeros(10**9, 0)},
        lambda state: {WORDS: torch.eye(9).to_sparse()},
        lambda state: {WORDS: torch.zeros(10**6, 10**4, device="meta")},
        lambda state: {FC: state[FC] * float("nan")},
    ],
)
def test_tensors_that_are_not_what_they_seem(recorded, tmp_path, change, old):
    path = tmp_path / "a.pth"
    in_file(path, change, recorded, _use_new_zipfile_serialization=not old)
    with pytest.raises(SelhnError):
        load_official("vsepp", path)


def test_a_compressed_file(recorded, tmp_path):
    in_file(tmp_path / "a.pth", lambda state: {}, recorded)
    load_official("vsepp", tmp_path / "a.pth")
    packed = zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "a.pth") as stored, packed:
        for member in stored.namelist():
            packed.writestr(member, stored.read(member))
    with pytest.raises(SelhnError, match="compressed"):
        load_official("vsepp", tmp_path / "b.pth")


def test_one_flipped_bit(recorded, tmp_path):
    """Of a weight: a few bits of the zip around it say nothing."""
    path = tmp_path / "a.pth"
    in_file(path, lambda state: {}, recorded)
    state, *_ = recorded("vsepp_cosine")
    content, weight = bytearray(path.read_bytes()), state[WORDS].tobytes()
    content[content.index(weight) + len(weight) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(Damaged):
        load_official("vsepp", path)


def test_a_storage_that_claims_more_than_its_bytes(recorded, tmp_path):
    """Without a check torch reads beyond the memory that it has taken."""
    state, *_ = recorded("vsepp_cosine")
    torch.save({"model": [{"fc.weight": torch.zeros(16, 16)}, {}]}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as stored, zipfile.ZipFile(tmp_path / "b.pth", "w") as forged:
        for member in stored.namelist():
            content = stored.read(member)
            if member.endswith("data.pkl"):  # BININT2 256, the length of the storage, and the 16 of the shape
                content = content.replace(b"M\x00\x01", b"J\x00\x00\x00\x10").replace(
                    b"K\x10K\x10", b"M\xff\x3fM\xff\x3f"
                )
            forged.writestr(member, content)
    with pytest.raises(Damaged):
        load_official("vsepp", tmp_path / "b.pth")


def test_a_side_that_is_missing_takes_no_memory(tmp_path):
    head = {"txt_enc.linear.weight": torch.zeros(10**6, 1), "txt_enc.linear.bias": torch.zeros(10**6)}
    with pytest.raises(SelhnError):
        load_official("vse_infty_bert", head, bert={**BERT, "hidden_size": 1, "num_attention_heads": 1})


@pytest.mark.parametrize("option", [[1], "x", {}, 10**400])
def test_options_that_are_no_values(recorded, tmp_path, option):
    state, *_ = recorded("scan_t2i_avg")
    write_checkpoint(tmp_path / "a.pth", state, lambda_softmax=option)
    with pytest.raises(SelhnError):
        load_official("scan_t2i_avg", tmp_path / "a.pth")


def test_another_model_is_named_by_its_keys(recorded):
    vsepp, *_ = recorded("vsepp_cosine")
    with pytest.raises(SelhnError, match="image.mlp"):
        load_official("vse_infty", vsepp)
    infty, *_ = recorded("vse_infty_image")
    with pytest.raises(SelhnError, match="unexpected"):
        load_official("vsepp", infty)
    del vsepp["txt_enc.rnn.bias_hh_l0"]
    with pytest.raises(SelhnError, match="rnn.bias_hh_l0"):
        load_official("vsepp", vsepp)


def test_unknown_name():
    with pytest.raises(NotFound, match="did you mean 'vse_infty'"):
        load_official("vse_inft", {})
