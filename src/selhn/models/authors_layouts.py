"""How the authors' programs name a model's parts, options and files: one row of `LAYOUTS` each."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import not_
from typing import Any

Options = Mapping[str, tuple[str, Callable[[Any], Any]]]
Names = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]

_GRU = [(r"(rnn|gru)\.(\w+)_reverse$", r"\1.back.\2"), (r"(rnn|gru)\.(\w+_l0)$", r"\1.ahead.\2")]
_VSEPP_NAMES = [(r"^img_enc\.fc\.", "fc."), (r"^txt_enc\.(embed|rnn)\.", r"\1.")]
_VSRN_NAMES: Names = [
    (r"^img_enc\.fc\.", "reasoning.fc."),
    (r"^img_enc\.Rs_GCN_([1-9]\d*)\.", lambda found: f"reasoning.layers.{int(found[1]) - 1}."),
    (r"\.W\.0\.", ".out."),
    (r"\.W\.1\.", ".norm."),
    (r"^img_enc\.img_rnn\.", "region_rnn."),
    (r"^img_enc\.bn\.", "final_bn."),
    (r"^txt_enc\.(embed|rnn)\.", r"\1."),
]
_CVSE_NAMES: Names = [
    *_GRU,
    (r"^(C_GCN\.(adj_O_|joint_att_emb)|\w+\.(fc\d|embedding_2_2\.)).*", ""),  # not used, or there twice
    (r"^img_enc\.", "image."),
    (r"^txt_enc\.", "text.words."),
    (r"^V_self_atten_enhance\.", "image.pool."),
    (r"^T_self_atten_enhance\.", "text.pool."),
    (r"(pool\.)embedding_1\.", r"\1local."),
    (r"(pool\.)embedding_2\.", r"\1mean."),
    (r"(pool\.)embedding_3\.0\.", r"\1common."),
    (r"^V_consensus_level_embedding\.", "image_consensus."),
    (r"^T_consensus_level_embedding\.", "text_consensus."),
    (r"(consensus\.)embedding_1\.", r"\1of_concept."),
    (r"(consensus\.)embedding_2\.", r"\1of_item."),
    (r"(consensus\.)embedding_3\.0\.", r"\1last."),
    (r"^C_GCN\.adj_all$", "concepts.adjacency"),
    (r"^C_GCN\.gc1\.weight$", "concepts.first"),
    (r"^C_GCN\.gc2\.weight$", "concepts.second"),
    (r"^concept_inputs$", "concepts.inputs"),
]
_VSE_NAMES = [
    *_GRU,
    (r"^img_enc\.(fc|mlp)\.", r"image.\1."),
    (r"^img_enc\.gpool\.", "image.gpo."),
    (r"^txt_enc\.(embed|rnn)\.", r"text.words.\1."),
    (r"^txt_enc\.bert\.", "text.words.bert."),
    (r"^txt_enc\.linear\.", "text.fc."),
    (r"^txt_enc\.gpool\.", "text.gpo."),
]
_FRAGMENT_NAMES = [
    (r"\.cap_rnn\.", ".rnn."),
    *_GRU,
    (r"^img_enc\.", "image."),
    (r"^txt_enc\.", "text.words."),
]
_POOL_NAMES = [
    (r"\.embedding_local\.", ".local."),
    (r"\.embedding_global\.", ".mean."),
    (r"\.embedding_common\.0\.", ".common."),
]
_STEP_NAMES = [(r"\.graph_(query|key)_w\.", r".\1."), (r"\.sim_graph_w\.", ".value.")]
_SGRAF_NAMES = [
    *_FRAGMENT_NAMES,
    (r"^sim_enc\.v_global_w\.", "image.pool."),
    (r"^sim_enc\.t_global_w\.", "text.pool."),
    *_POOL_NAMES,
    (r"^sim_enc\.sim_tranloc_w\.", "head.local."),
    (r"^sim_enc\.sim_tranglo_w\.", "head.whole."),
    (r"^sim_enc\.sim_eval_w\.", "head.last."),
    (r"^sim_enc\.SGR_module\.", "head.reasoning.steps."),
    *_STEP_NAMES,
    (r"^sim_enc\.SAF_module\.attn_sim_w\.", "head.reasoning.attention."),
    (r"^sim_enc\.SAF_module\.bn\.", "head.reasoning.norm."),
]
_NAAF_NAMES = [(r"^txt_enc\.embed\.glove\.", "txt_enc.embed."), *_FRAGMENT_NAMES]
_NAAF_OPTIONS = {
    "thres": ("threshold", float),
    "thres_safe": ("threshold_safe", float),
    "alpha": ("alpha", float),
}
_CAMP_NAMES = [
    *_FRAGMENT_NAMES,
    (r"^criterion\.sim\.(weighted_txt|img)_query_fc\.", r"head.to_regions.\1_query."),
    (r"^criterion\.sim\.(weighted_txt|txt)_key_fc\.", r"head.to_regions.\1_key."),
    (r"^criterion\.sim\.(weighted_img|txt)_query_fc\.", r"head.to_words.\1_query."),
    (r"^criterion\.sim\.(weighted_img|img)_key_fc\.", r"head.to_words.\1_key."),
    (r"\.weighted_(txt|img)_(query|key)\.", r".own_\2."),
    (r"\.(txt|img)_(query|key)\.", r".\2."),
    (r"^criterion\.sim\.(fc|final_reduce)_1\.", r"head.to_regions.\1."),
    (r"^criterion\.sim\.(fc|final_reduce)_2\.", r"head.to_words.\1."),
    (r"\.fc\.0\.", ".fuse."),
    (r"\.final_reduce\.linear\.", ".summary."),
    (r"^criterion\.sim\.fc_out\.0\.", "head.out.0."),
    (r"^criterion\.sim\.fc_out\.3\.", "head.out.2."),
]
_IMRAM_NAMES = [
    (r"^img_enc\.fc_local\.", "image.fc."),
    *_FRAGMENT_NAMES,
    (r"^linear_(t2i|i2t)\.", r"head.memories.\1.output."),
    (r"^gate_(t2i|i2t)\.", r"head.memories.\1.gate."),
]
_CMCAN_NAMES = [
    *_FRAGMENT_NAMES,
    (r"^sim_embv\.t_global_w\.", "text.pool."),
    *_POOL_NAMES,
    (r"^sim_embv\.emb_(local|common|global)_?(li)?\.", r"image.pool.\1.0."),
    (r"^sim_embv\.emb_(local|global)_bn\.", r"image.pool.\1.1."),
    (r"^image\.pool\.global\.", "image.pool.mean."),
    (r"^image\.pool\.common\.0\.", "image.pool.common."),
    (r"^sim_embt\.sim_tranloc_wt\.", "head.by_word."),
    (r"^sim_embv\.sim_tranloc_wv\.", "head.by_region."),
    (r"^sim_embv\.sim_tranpar_wv\.", "head.around."),
    (r"^sim_embv\.sim_tranglo_w\.", "head.whole."),
    (r"^sim_embv\.emb_similarity\.", "head.confidence."),
    (r"^sim_embv\.ln\.", "head.norm."),
    (r"^sim_enc\.sim_eval_w\.", "head.last."),
    (r"^sim_enc\.module_t\.", "head.textual.steps."),
    (r"^sim_enc\.module_v\.", "head.visual.steps."),
    *_STEP_NAMES,
]
_GSMN_NAMES = [
    *_FRAGMENT_NAMES,
    (r"_match_G\.(graph_convolution_\d|[vt]GNN)\.", "_match_G."),
    (r"^t2i_match_G\.params$", ""),  # they cancel when the edges of words are normalised
    (r"^i2t_match_G\.(mean|precision)_", r"image.pool.\1_"),
    (r"^i2t_match_G\.", "head.visual."),
    (r"^t2i_match_G\.", "head.textual."),
    (r"\.conv_weights\.", ".convolutions."),
    (r"\.weight_g$", ".parametrizations.weight.original0"),
    (r"\.weight_v$", ".parametrizations.weight.original1"),
]
AXES = [
    ("vocab_size", "txt_enc.embed.weight", 0),
    ("word_dim", "txt_enc.embed.weight", 1),
    ("vocab_size", "txt_enc.embed.glove.weight", 0),
    ("word_dim", "txt_enc.embed.glove.weight", 1),
    ("dim", "txt_enc.rnn.weight_hh_l0", 1),
    ("dim", "txt_enc.linear.weight", 0),
    ("dim", "img_enc.fc.weight", 0),
    ("feature_dim", "img_enc.fc.weight", 1),
    ("feature_dim", "img_enc.fc_local.weight", 1),
    ("num_regions", "sim_enc.v_global_w.embedding_local.1.weight", 0),
    ("num_regions", "V_self_atten_enhance.embedding_1.1.weight", 0),
    ("num_concepts", "C_GCN.adj_all", 0),
    ("concept_dim", "C_GCN.gc1.weight", 0),
    ("num_regions", "sim_embv.ln.weight", 0),
    ("sim_dim", "sim_enc.sim_eval_w.weight", 1),
    ("sim_dim", "sim_embt.sim_tranloc_wt.weight", 0),
    ("blocks", "i2t_match_G.graph_convolution_1.conv_weights.0.weight", 1),
    ("blocks", "i2t_match_G.vGNN.conv_weights.0.weight", 1),
    ("hidden", "i2t_match_G.out_1.bias", 0),
    ("heads", "criterion.sim.final_reduce_1.linear.2.weight", 0),
]
"""Settings read from the length of a weight's axis; if several weights are present, the last counts."""
BERT_AXES = [
    ("vocab_size", "txt_enc.bert.embeddings.word_embeddings.weight", 0),
    ("max_position_embeddings", "txt_enc.bert.embeddings.position_embeddings.weight", 0),
    ("type_vocab_size", "txt_enc.bert.embeddings.token_type_embeddings.weight", 0),
    ("hidden_size", "txt_enc.linear.weight", 1),
    ("intermediate_size", "txt_enc.bert.encoder.layer.0.intermediate.dense.weight", 0),
]


@dataclass(frozen=True)
class AuthorsLayout:
    """How the authors name and order the parts of a model."""

    names: Names
    """Their names to ours: patterns and replacements, applied in order; an empty name drops the weight."""
    fixed: Mapping[str, Any]
    """Options of their programs that our model supports with one value only."""
    options: Options = field(default_factory=dict)
    """Their other options: our setting for each, and how to convert its value."""
    parts: tuple[str, ...] = ("img_enc.", "txt_enc.")
    """The prefixes of the state dicts in the list that their checkpoint holds."""
    ours: Mapping[str, Any] = field(default_factory=dict)
    """Our settings that reproduce their program."""
    unsaved: tuple[str, ...] = ()
    """Prefixes of weights that their checkpoints leave out, or store as options."""
    needed: Mapping[str, str] = field(default_factory=dict)
    """Those of them that are needed outside training, and the setting that must provide each."""


_UNIT = {"no_imgnorm": False, "no_txtnorm": False}
_VSEPP_OPTIONS = {"no_imgnorm": ("normalise_images", not_)}
_FRAGMENTS = {**_UNIT, "raw_feature_norm": "clipped_l2norm"}
_SMOOTH = {"lambda_softmax": ("smooth", float)}
_IMRAM_OPTIONS: Options = {
    **_SMOOTH,
    "iteration_step": ("steps", int),
    "no_IMRAM_norm": ("memory_norm", not_),
}
_LSE = {**_SMOOTH, "lambda_lse": ("lambda_lse", float)}
_CVSE_PARTS = (
    "V_self_atten_enhance.", "T_self_atten_enhance.", "V_consensus_level_embedding.", "T_consensus_level_embedding.",
    "C_GCN.", "Multi_feature_fusing.",
)  # fmt: skip
_WITH_HEAD = ("img_enc.", "txt_enc.", "sim_enc.")


def _scan(direction: str, pooling: str) -> AuthorsLayout:
    fixed = {**_FRAGMENTS, "cross_attn": direction, "agg_func": pooling}
    return AuthorsLayout(_FRAGMENT_NAMES, fixed, _LSE if pooling == "LogSumExp" else _SMOOTH)


def _camp(measure: str) -> AuthorsLayout:
    parts = ("img_enc.", "txt_enc.", "criterion.sim.")
    return AuthorsLayout(
        _CAMP_NAMES, {"no_imgnorm": True, "no_txtnorm": True, "measure": measure}, parts=parts
    )


def _imram(mode: str, unused: str | None = None) -> AuthorsLayout:
    """`unused`: the direction that a one-directional model has weights for but never uses."""
    names = [*_IMRAM_NAMES, *([] if unused is None else [(rf"^head\.memories\.{unused}\..*", "")])]
    return AuthorsLayout(names, {**_FRAGMENTS, "model_mode": mode}, _IMRAM_OPTIONS)


def _gsmn(sparse: bool) -> AuthorsLayout:
    parts = ("img_enc.", "txt_enc.", "i2t_match_G.", "t2i_match_G.")
    return AuthorsLayout(_GSMN_NAMES, {**_UNIT, "is_sparse": sparse}, _SMOOTH, parts, {"own_vectors": True})


LAYOUTS: Mapping[str, AuthorsLayout] = {
    "vsepp": AuthorsLayout(_VSEPP_NAMES, {"measure": "cosine", "use_abs": False}, _VSEPP_OPTIONS),
    "vsepp_order": AuthorsLayout(_VSEPP_NAMES, {"measure": "order", "use_abs": True}, _VSEPP_OPTIONS),
    "vse_infty": AuthorsLayout(_VSE_NAMES, _UNIT),
    "vse_infty_bert": AuthorsLayout(_VSE_NAMES, _UNIT),
    "vsrn": AuthorsLayout(
        _VSRN_NAMES, {**_UNIT, "measure": "cosine", "use_abs": False}, unsaved=("captioner.",)
    ),
    "cvse": AuthorsLayout(
        _CVSE_NAMES,
        {**_UNIT, "use_BatchNorm": True, "activation_type": "tanh", "feature_fuse_type": "weight_sum"},
        {"Concept_label_ratio": ("label_ratio", float)},
        parts=("img_enc.", "txt_enc.", *_CVSE_PARTS),
        unsaved=("concepts.inputs", "concept_of_word"),
        needed={"concepts.inputs": "concept_inputs"},
    ),
    "scan_t2i_avg": _scan("t2i", "Mean"),
    "scan_t2i_lse": _scan("t2i", "LogSumExp"),
    "scan_i2t_avg": _scan("i2t", "Mean"),
    "scan_i2t_lse": _scan("i2t", "LogSumExp"),
    "bfan_equal": AuthorsLayout(_FRAGMENT_NAMES, {**_FRAGMENTS, "focal_type": "equal"}, _SMOOTH),
    "bfan_prob": AuthorsLayout(_FRAGMENT_NAMES, {**_FRAGMENTS, "focal_type": "prob"}, _SMOOTH),
    "sgr": AuthorsLayout(_SGRAF_NAMES, {**_FRAGMENTS, "module_name": "SGR"}, parts=_WITH_HEAD),
    "saf": AuthorsLayout(_SGRAF_NAMES, {**_FRAGMENTS, "module_name": "SAF"}, parts=_WITH_HEAD),
    "camp": _camp("gate_fusion_new"),
    "camp_stage1": _camp("cross_attention_new"),
    "imram_text": _imram("text_IMRAM", unused="i2t"),
    "imram_image": _imram("image_IMRAM", unused="t2i"),
    "imram": _imram("full_IMRAM"),
    "gsmn_dense": _gsmn(False),
    "gsmn_sparse": _gsmn(True),
    "cmcan": AuthorsLayout(
        _CMCAN_NAMES, _UNIT, parts=("img_enc.", "txt_enc.", "sim_embt.", "sim_embv.", "sim_enc.")
    ),
    "naaf": AuthorsLayout(_NAAF_NAMES, _UNIT, {**_NAAF_OPTIONS, **_SMOOTH}, unsaved=("head.thresholds.",)),
}
