"""The table of folders that are refused, and what the message about each must say."""

from __future__ import annotations

import numpy as np
from catalogue import DENSE
from damages import (
    INDEX,
    QUERY,
    SHARD,
    WEIGHTS,
    WORDS,
    Bad,
    changed_bytes,
    changed_header,
    changed_tensors,
    changed_weight_map,
    dense_as_pickle,
    dense_tensors,
    json_dropped,
    json_set,
    listed_modules,
    made_a_folder,
    nothing,
    one_value,
    only_pickles,
    other_shard,
    removed,
    stored_as,
    text,
    token_beyond_the_table,
)
from folders import VOCAB, DenseSpec, TinyBert, write_json, write_tensors

PROMPTED = TinyBert(prompts={"query": "Find:"})
SHARDED = TinyBert(shards=2)
DENSE_SPEC = DENSE["dense_tanh"].spec
SAID = "config_sentence_transformers.json"
POOLING = "1_Pooling/config.json"
DENSE_CONFIG = "2_Dense/config.json"
BERT_SETTINGS = "sentence_bert_config.json"
NEW_POOLING = TinyBert(pooling_spelling="new")
DEEP = "[" * 100_000

BAD_CONFIGS: dict[str, Bad] = {
    "config missing": Bad(removed("config.json"), ("config.json", "cannot be read")),
    "config is a folder": Bad(made_a_folder("config.json"), ("config.json", "cannot be read")),
    "config not JSON": Bad(text("config.json", "{'a': 1}"), ("config.json", "not valid JSON")),
    "config cut short": Bad(text("config.json", '{"a": '), ("config.json", "not valid JSON")),
    "config empty": Bad(text("config.json", ""), ("config.json", "not valid JSON")),
    "config not UTF-8": Bad(text("config.json", b'{"a": "\xe9"}'), ("config.json", "not valid")),
    "config a list": Bad(text("config.json", "[]"), ("config.json", "list", "JSON object")),
    "config nested too deep": Bad(text("config.json", DEEP), ("config.json", "not valid JSON")),
    "model_type unknown": Bad(
        json_set("config.json", model_type="made_up"),
        ("config.json", "model_type", "made_up", "bert"),
    ),
    "model_type missing": Bad(
        json_dropped("config.json", "model_type"), ("config.json", "model_type")
    ),
    "hidden_act unknown": Bad(
        json_set("config.json", hidden_act="made_up"), ("config.json", "hidden_act", "gelu_new")
    ),
    "hidden_act a list": Bad(
        json_set("config.json", hidden_act=["gelu"]), ("config.json", "hidden_act")
    ),
    "relative positions": Bad(
        json_set("config.json", position_embedding_type="relative_key"),
        ("config.json", "position_embedding_type", "relative_key", "absolute"),
    ),
    "decoder": Bad(
        json_set("config.json", is_decoder=True), ("config.json", "is_decoder", "False")
    ),
    "cross-attention": Bad(
        json_set("config.json", add_cross_attention=True), ("config.json", "add_cross_attention")
    ),
    "pruned heads": Bad(
        json_set("config.json", pruned_heads={"0": [1]}), ("config.json", "pruned_heads")
    ),
    "heads do not divide": Bad(
        json_set("config.json", num_attention_heads=3),
        ("config.json", "num_attention_heads", "3", "32"),
    ),
    "hidden_size a string": Bad(
        json_set("config.json", hidden_size="32"), ("config.json", "hidden_size", "'32'", "integer")
    ),
    "heads zero": Bad(
        json_set("config.json", num_attention_heads=0), ("config.json", "num_attention_heads", "0")
    ),
    "layers missing": Bad(
        json_dropped("config.json", "num_hidden_layers"), ("config.json", "num_hidden_layers")
    ),
    "layers true": Bad(
        json_set("config.json", num_hidden_layers=True),
        ("config.json", "num_hidden_layers", "True"),
    ),
    "eps negative": Bad(
        json_set("config.json", layer_norm_eps=-1.0),
        ("config.json", "layer_norm_eps", "-1.0", "positive"),
    ),
    "eps not a number": Bad(
        text("config.json", '{"model_type": "bert", "layer_norm_eps": NaN}'), ("config.json",)
    ),
    "modules an object": Bad(text("modules.json", "{}"), ("modules.json", "list")),
    "modules without a pooling": Bad(
        listed_modules("Transformer"), ("modules.json", "wanted Transformer, Pooling")
    ),
    "modules empty": Bad(
        text("modules.json", "[]"), ("modules.json", "wanted Transformer, Pooling")
    ),
    "module type unknown": Bad(
        listed_modules("Transformer", "Pooling", "CNN"),
        ("modules.json", "sentence_transformers.models.CNN"),
    ),
    "module of another library": Bad(
        listed_modules("Transformer", "Pooling", family="mine.models"),
        ("modules.json", "mine.models.Transformer"),
    ),
    "module without a type": Bad(
        text("modules.json", '[{"path": ""}]'), ("modules.json", "'type'")
    ),
    "modules out of order": Bad(
        listed_modules("Pooling", "Transformer"), ("modules.json", "Pooling, Transformer", "wanted")
    ),
    "two poolings": Bad(
        listed_modules("Transformer", "Pooling", "Pooling"),
        ("modules.json", "wanted Transformer, Pooling"),
    ),
    "pooling missing": Bad(removed(POOLING), ("1_Pooling", "config.json", "cannot be read")),
    "pooling key unknown": Bad(
        json_set(POOLING, pooling_mode_median_tokens=True), (POOLING, "pooling_mode_median_tokens")
    ),
    "pooling mode unknown": Bad(
        json_set(POOLING, pooling_mode="median"),
        (POOLING, "pooling_mode", "median", "mean"),
        NEW_POOLING,
    ),
    "pooling modes empty": Bad(
        json_set(POOLING, pooling_mode=[]), (POOLING, "pooling_mode", "[]"), NEW_POOLING
    ),
    "pooling modes of mixed kinds": Bad(
        json_set(POOLING, pooling_mode=["mean", 1]), (POOLING, "pooling_mode"), NEW_POOLING
    ),
    "no pooling on": Bad(
        json_set(POOLING, pooling_mode_mean_tokens=False), (POOLING, "no pooling is on")
    ),
    "pooling flag a number": Bad(
        json_set(POOLING, pooling_mode_mean_tokens=1), (POOLING, "pooling_mode_mean_tokens", "true")
    ),
    "include_prompt a string": Bad(
        json_set(POOLING, include_prompt="yes"),
        (POOLING, "include_prompt", "'yes'", "true or false"),
    ),
    "pooling width": Bad(
        json_set(POOLING, word_embedding_dimension=48), ("pooling", "48", "hidden size", "32")
    ),
    "prompts a list": Bad(json_set(SAID, prompts=["Find:"]), (SAID, "prompts", "object"), PROMPTED),
    "prompt not a string": Bad(json_set(SAID, prompts={"query": 3}), (SAID, "prompts"), PROMPTED),
    "default prompt unknown": Bad(
        json_set(SAID, default_prompt_name="passage"),
        (SAID, "default_prompt_name", "passage", "query"),
        PROMPTED,
    ),
    "default prompt a number": Bad(
        json_set(SAID, default_prompt_name=1), (SAID, "default_prompt_name", "string"), PROMPTED
    ),
    "declared limit a string": Bad(
        json_set(BERT_SETTINGS, max_seq_length="16"),
        (BERT_SETTINGS, "max_seq_length", "'16'", "integer"),
        TinyBert(max_seq_length=16),
    ),
    "declared limit below the special tokens": Bad(
        nothing, ("max_seq_len is 2", "special tokens"), TinyBert(max_seq_length=2)
    ),
    "do_lower_case a string": Bad(
        json_set(BERT_SETTINGS, do_lower_case="no"),
        (BERT_SETTINGS, "do_lower_case", "true or false"),
        TinyBert(max_seq_length=16),
    ),
    "truncation side unknown": Bad(
        json_set("tokenizer_config.json", truncation_side="middle"),
        ("tokenizer_config.json", "truncation_side", "middle", "left, right"),
    ),
}

BAD_WEIGHTS: dict[str, Bad] = {
    "no weights": Bad(removed(WEIGHTS), (WEIGHTS, INDEX)),
    "weights are a folder": Bad(made_a_folder(WEIGHTS), (WEIGHTS, "not a readable safetensors")),
    "weights empty": Bad(text(WEIGHTS, b""), (WEIGHTS, "not a readable safetensors")),
    "weights cut short": Bad(
        changed_bytes(lambda raw: raw[:-100]), (WEIGHTS, "not a readable safetensors")
    ),
    "weights cut in the header": Bad(
        changed_bytes(lambda raw: raw[:50]), (WEIGHTS, "not a readable safetensors")
    ),
    "weights with bytes to spare": Bad(
        changed_bytes(lambda raw: raw + b"\0" * 64), (WEIGHTS, "not a readable safetensors")
    ),
    "header corrupt": Bad(
        changed_bytes(lambda raw: raw[:9] + b"\xff\xfe}" + raw[12:]),
        (WEIGHTS, "not a readable safetensors"),
    ),
    "header size absurd": Bad(
        changed_bytes(lambda raw: b"\xff" * 7 + b"\x7f" + raw[8:]),
        (WEIGHTS, "not a readable safetensors"),
    ),
    "header claims more than the file": Bad(
        changed_header(lambda h: h[QUERY].update(data_offsets=[0, 10**12])),
        (WEIGHTS, "not a readable safetensors"),
    ),
    "header shape beyond its bytes": Bad(
        changed_header(lambda h: h[QUERY].update(shape=[64, 64])),
        (WEIGHTS, "not a readable safetensors"),
    ),
    "tensor missing": Bad(
        changed_tensors(lambda t: t.pop(QUERY)), (QUERY, "no tensor", "(32, 32)")
    ),
    "tensor missing under a prefix": Bad(
        changed_tensors(lambda t: t.pop(f"bert.{QUERY}"), TinyBert(prefix="bert.")),
        (f"bert.{QUERY}", "no tensor", "(32, 32)"),
        TinyBert(prefix="bert."),
    ),
    "word table missing": Bad(changed_tensors(lambda t: t.pop(WORDS)), (WORDS, "with any prefix")),
    "no tensors at all": Bad(
        lambda folder: write_tensors(folder / WEIGHTS, {}), (WORDS, "none at all")
    ),
    "tensor transposed": Bad(
        changed_tensors(
            lambda t: t.update({"encoder.layer.1.intermediate.dense.weight": np.ones((32, 52))})
        ),
        (WEIGHTS, "encoder.layer.1.intermediate.dense.weight", "(32, 52)", "(52, 32)"),
    ),
    "vocabulary larger than the table": Bad(
        json_set("config.json", vocab_size=len(VOCAB) + 8), (WEIGHTS, WORDS, str(len(VOCAB) + 8))
    ),
    "positions more than the table": Bad(
        json_set("config.json", max_position_embeddings=512),
        ("position_embeddings", "(64, 32)", "512"),
    ),
    "fewer layers than stored": Bad(
        json_set("config.json", num_hidden_layers=1), (WEIGHTS, "encoder.layer.1.", "no place")
    ),
    "more layers than stored": Bad(
        json_set("config.json", num_hidden_layers=3), ("encoder.layer.2.", "no tensor")
    ),
    "tensor unmapped": Bad(
        nothing,
        (WEIGHTS, "embeddings.rotary.weight", "(3, 4)", "no place"),
        TinyBert(extras=(("embeddings.rotary.weight", (3, 4)),)),
    ),
    "tensor under its old and its new name": Bad(
        nothing,
        (WEIGHTS, "embeddings.LayerNorm.gamma"),
        TinyBert(extras=(("embeddings.LayerNorm.gamma", (32,)),)),
    ),
    "two prefixes": Bad(
        changed_tensors(lambda t: t.update({f"bert.{k}": v for k, v in list(t.items())})),
        (WORDS, "several prefixes", "bert."),
    ),
    "tensor of float64": Bad(stored_as(QUERY, "F64", 8), (WEIGHTS, QUERY, "F64", "F32, F16, BF16")),
    "tensor of int8": Bad(stored_as(QUERY, "I8", 1), (WEIGHTS, QUERY, "I8", "F32, F16, BF16")),
    "weights not a number": Bad(one_value(QUERY, np.nan), (WEIGHTS, QUERY, "not finite")),
    "weights infinite": Bad(one_value(QUERY, -np.inf), (WEIGHTS, QUERY, "not finite")),
    "beyond float16": Bad(
        one_value("encoder.layer.0.output.dense.weight", 7e4),
        ("mlp_out", "7e+04", "float16", "float32"),
        options={"dtype": "float16"},
    ),
    "shard missing": Bad(removed(SHARD), (SHARD, "missing", INDEX), SHARDED),
    "shard cut short": Bad(
        changed_bytes(lambda raw: raw[:-4], SHARD), (SHARD, "not a readable"), SHARDED
    ),
    "index not JSON": Bad(text(INDEX, "{"), (INDEX, "not valid JSON"), SHARDED),
    "index without a map": Bad(json_dropped(INDEX, "weight_map"), (INDEX, "weight_map"), SHARDED),
    "index map a list": Bad(json_set(INDEX, weight_map=[SHARD]), (INDEX, "weight_map"), SHARDED),
    "index misplaces a tensor": Bad(
        changed_weight_map(lambda m: m.update({QUERY: other_shard(m[QUERY])})),
        (QUERY, INDEX),
        SHARDED,
    ),
    "index names a tensor no shard has": Bad(
        changed_weight_map(lambda m: m.update({"more.weight": SHARD})),
        (SHARD, "more.weight", INDEX),
        SHARDED,
    ),
    "index forgets a tensor": Bad(
        changed_weight_map(lambda m: m.pop(QUERY)), (QUERY, INDEX), SHARDED
    ),
    "index points outside the folder": Bad(
        changed_weight_map(lambda m: m.update({QUERY: "../other.safetensors"})),
        (INDEX, "../other.safetensors", "outside"),
        SHARDED,
    ),
    "index map of numbers": Bad(
        changed_weight_map(lambda m: m.update({QUERY: 1})), (INDEX,), SHARDED
    ),
    "only pickles": Bad(only_pickles, ("pytorch_model.bin", "never opened", WEIGHTS)),
}

BAD_MODULES: dict[str, Bad] = {
    "Dense missing": Bad(removed(DENSE_CONFIG), ("2_Dense", "cannot be read"), DENSE_SPEC),
    "Dense without weights": Bad(removed(f"2_Dense/{WEIGHTS}"), ("2_Dense", WEIGHTS), DENSE_SPEC),
    "Dense as a pickle only": Bad(
        dense_as_pickle, ("2_Dense", WEIGHTS, "missing", "never opened"), DENSE_SPEC
    ),
    "Dense takes another width": Bad(
        json_set(DENSE_CONFIG, in_features=48), ("2_Dense", "48", "32"), DENSE_SPEC
    ),
    "Dense after a Dense of another width": Bad(
        nothing, ("3_Dense", "24", "16"), TinyBert(dense=(DenseSpec(32, 16), DenseSpec(24, 8)))
    ),
    "Dense weights of another shape": Bad(
        json_set(DENSE_CONFIG, out_features=8),
        ("2_Dense", "linear.weight", "(16, 32)", "(8, 32)"),
        DENSE_SPEC,
    ),
    "Dense activation unknown": Bad(
        json_set(DENSE_CONFIG, activation_function="torch.nn.modules.activation.Hardtanh"),
        (DENSE_CONFIG, "activation_function", "Hardtanh", "Tanh"),
        DENSE_SPEC,
    ),
    "Dense activation not torch's": Bad(
        json_set(DENSE_CONFIG, activation_function="mine.Tanh"),
        (DENSE_CONFIG, "activation_function", "mine.Tanh"),
        DENSE_SPEC,
    ),
    "Dense with a residual": Bad(
        json_set(DENSE_CONFIG, use_residual=True), (DENSE_CONFIG, "use_residual"), DENSE_SPEC
    ),
    "Dense key unknown": Bad(json_set(DENSE_CONFIG, scale=2), (DENSE_CONFIG, "scale"), DENSE_SPEC),
    "Dense without a width": Bad(
        json_dropped(DENSE_CONFIG, "in_features"), (DENSE_CONFIG, "in_features"), DENSE_SPEC
    ),
    "Dense of token vectors": Bad(
        json_set(DENSE_CONFIG, module_input_name="token_embeddings"),
        (DENSE_CONFIG, "module_input_name", "sentence_embedding"),
        DENSE_SPEC,
    ),
    "Dense bias missing": Bad(
        dense_tensors(linear_weight=np.ones((16, 32))), ("2_Dense", "linear.bias"), DENSE_SPEC
    ),
    "Dense bias not in the config": Bad(
        json_set(DENSE_CONFIG, bias=False), ("2_Dense", "linear.bias", "no place"), DENSE_SPEC
    ),
    "Dense weights not a number": Bad(
        dense_tensors(linear_weight=np.full((16, 32), np.nan), linear_bias=np.ones(16)),
        ("2_Dense", "linear.weight", "not finite"),
        DENSE_SPEC,
    ),
    "Normalize of token vectors": Bad(
        lambda folder: write_json(
            folder / "3_Normalize" / "config.json", {"module_input_name": "token_embeddings"}
        ),
        ("3_Normalize", "module_input_name", "sentence_embedding"),
        DENSE_SPEC,
    ),
}

BAD_TOKENIZERS: dict[str, Bad] = {
    "tokenizer missing": Bad(removed("tokenizer.json"), ("tokenizer.json", "missing")),
    "tokenizer a folder": Bad(
        made_a_folder("tokenizer.json"), ("tokenizer.json", "cannot be read")
    ),
    "tokenizer not JSON": Bad(text("tokenizer.json", "{"), ("tokenizer.json", "not a readable")),
    "tokenizer empty": Bad(text("tokenizer.json", ""), ("tokenizer.json", "not a readable")),
    "tokenizer not UTF-8": Bad(
        text("tokenizer.json", b'{"\xff": 1}'), ("tokenizer.json", "not a readable")
    ),
    "tokenizer a list": Bad(text("tokenizer.json", "[]"), ("tokenizer.json", "not a readable")),
    "tokenizer nested too deep": Bad(
        text("tokenizer.json", DEEP), ("tokenizer.json", "not a readable")
    ),
    "tokenizer without a model": Bad(
        json_dropped("tokenizer.json", "model"), ("tokenizer.json", "not a readable")
    ),
    "tokenizer ids beyond the table": Bad(
        token_beyond_the_table, ("tokenizer.json", "zebra", str(len(VOCAB) + 3), str(len(VOCAB)))
    ),
    "tokenizer_config not JSON": Bad(
        text("tokenizer_config.json", "{"), ("tokenizer_config.json", "not valid JSON")
    ),
    "model_max_length a string": Bad(
        json_set("tokenizer_config.json", model_max_length="512"),
        ("tokenizer_config.json", "model_max_length", "'512'", "integer"),
    ),
    "strip_accents a string": Bad(
        json_set("tokenizer_config.json", strip_accents="no"),
        ("tokenizer_config.json", "strip_accents", "true or false"),
    ),
}

BAD_OPTIONS: dict[str, Bad] = {
    "dim beyond the width": Bad(nothing, ("dim is 33", "1 to 32"), options={"dim": 33}),
    "dim zero": Bad(nothing, ("dim is 0", "1 to 32"), options={"dim": 0}),
    "limit beyond the positions": Bad(
        nothing, ("max_seq_len is 65", "1 to 64"), options={"max_seq_len": 65}
    ),
    "no threads": Bad(nothing, ("threads is 0", "at least 1"), options={"threads": 0}),
}

BAD = {**BAD_CONFIGS, **BAD_WEIGHTS, **BAD_MODULES, **BAD_TOKENIZERS, **BAD_OPTIONS}
