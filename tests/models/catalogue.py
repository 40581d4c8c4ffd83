"""The tiny models with goldens: each folder, its texts, and the variants it must not be taken for.

A wrong variant is mostly the same folder with one option changed, as an engine that hard-codes or
drops the option would compute it; `MASK_SLIPS` are made by the golden script itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from folders import DenseSpec, TinyBert

TEXTS = (
    "short",
    "a somewhat longer sentence about rivers",
    "",
    "hello world",
    "one two three",
    "river",
    "Hello, World! It is ten: run-running 2 rivers - in the house?",
    " ".join(["alpha dog zebra", "with the long cat and one house for ten rivers"] * 2),
)

IDENTITY = "torch.nn.modules.linear.Identity"
ACTIVATION = "torch.nn.modules.activation."

MASK_SLIPS = ("no attention mask", "pads in the mean")
"""Wrong variants of NUM-08: the first text batched with all the others, padded."""


@dataclass(frozen=True)
class Case:
    """A named folder with a golden. prompt: the prompt's name given to `encode`, None for none."""

    spec: TinyBert
    wrong: Mapping[str, TinyBert] = field(default_factory=dict)
    texts: tuple[str, ...] = TEXTS
    prompt: str | None = None
    mask_slips: bool = False


def _case(spec: TinyBert, /, **wrong: Mapping[str, object]) -> Case:
    return Case(spec, {name: replace(spec, **changes) for name, changes in wrong.items()})


BASE = TinyBert()
PROMPTS = {"query": "Find:", "document": "", "glue": "ri", "spaced": "Find: "}
PROMPTED = TinyBert(prompts=PROMPTS)
SHORT = TinyBert(
    positions=32, max_seq_length=16, baked_truncation=8, baked_padding=8, pooling=("mean",)
)
WORD_COUNTS = (1, 6, 7, 14, 15, 40)
COUNTED_WORDS = tuple(" ".join(["cat dog house one two ten"] * 7).split())
SHORT_TEXTS = tuple(" ".join(COUNTED_WORDS[:n]) for n in WORD_COUNTS)
CASE_TEXTS = ("HELLO World", "hello world", "HELLO", "hello", "İx", "Straße", "STRASSE Café")
LONG_TEXTS = tuple(
    " ".join((COUNTED_WORDS + COUNTED_WORDS + COUNTED_WORDS)[i : i + 100 + i % 20])
    for i in range(31)
)

HEADS: dict[str, Case] = {
    "heads_16": _case(TinyBert(hidden=32, heads=2, layers=6), heads={"heads": 1}),
    "heads_32": _case(
        TinyBert(hidden=96, heads=3, layers=3, intermediate=130, std=0.15), heads={"heads": 6}
    ),
    "heads_64": _case(
        TinyBert(hidden=128, heads=2, layers=2, intermediate=200, std=0.15), heads={"heads": 4}
    ),
    "heads_128": _case(
        TinyBert(hidden=256, heads=2, layers=2, intermediate=300, std=0.12), heads={"heads": 4}
    ),
}

POOLING: dict[str, Case] = {
    f"pool_{mode}_{spelling}": _case(
        TinyBert(pooling=(mode,), pooling_spelling=spelling, modules=spelling),
        other={"pooling": ("mean",) if mode != "mean" else ("cls",)},
        last={"pooling": ("lasttoken",) if mode != "lasttoken" else ("weightedmean",)},
    )
    for mode in ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    for spelling in ("old", "new")
} | {
    "pool_several_old": _case(
        TinyBert(pooling=("cls", "max", "mean")),
        order={"pooling": ("max", "cls", "mean"), "pooling_spelling": "new"},
    ),
    "pool_several_new": _case(
        TinyBert(pooling=("mean", "cls"), pooling_spelling="new", modules="new"),
        order={"pooling": ("cls", "mean")},
    ),
    "plain": _case(
        TinyBert(modules=None),
        cls={"modules": "old", "pooling": ("cls",)},
        normalized={"modules": "old", "normalize": True},
    ),
}

NORMALIZE: dict[str, Case] = {
    "normalize_on": _case(TinyBert(normalize=True), without={"normalize": False}),
    "normalize_off": _case(TinyBert(), always={"normalize": True}),
}

TANH_16 = DenseSpec(32, 16)
DENSE: dict[str, Case] = {
    "dense_tanh": _case(
        TinyBert(dense=(TANH_16,), normalize=True),
        identity={"dense": (DenseSpec(32, 16, IDENTITY),)},
        no_bias={"dense": (DenseSpec(32, 16, bias=False),)},
        not_normalized={"normalize": False},
    ),
    "dense_identity": _case(
        TinyBert(dense=(DenseSpec(32, 16, IDENTITY),), normalize=True),
        tanh={"dense": (TANH_16,)},
    ),
    "dense_no_bias": _case(
        TinyBert(dense=(DenseSpec(32, 16, bias=False),), normalize=True),
        bias={"dense": (TANH_16,)},
    ),
    "dense_two": _case(
        TinyBert(dense=(DenseSpec(32, 32), DenseSpec(32, 16, IDENTITY)), normalize=True),
        second_tanh={"dense": (DenseSpec(32, 32), DenseSpec(32, 16))},
        first_identity={"dense": (DenseSpec(32, 32, IDENTITY), DenseSpec(32, 16, IDENTITY))},
    ),
    "dense_same_width": _case(
        TinyBert(dense=(DenseSpec(32, 32),), normalize=True, modules="new"),
        no_dense={"dense": ()},
    ),
    "dense_after_several": _case(
        TinyBert(dense=(DenseSpec(64, 24),), pooling=("cls", "mean")),
        identity={"dense": (DenseSpec(64, 24, IDENTITY),)},
    ),
} | {
    f"dense_{name.lower()}": _case(
        TinyBert(dense=(DenseSpec(32, 16, ACTIVATION + name),)), tanh={"dense": (TANH_16,)}
    )
    for name in ("ReLU", "GELU", "SiLU", "Sigmoid")
}

TEN = ("river", " river", "vers one", "a somewhat longer sentence about rivers", "")
PROMPT: dict[str, Case] = {
    "prompt_none": Case(PROMPTED, texts=TEN),
    "prompt_query": Case(
        PROMPTED,
        {
            "none": replace(PROMPTED, prompts=PROMPTS | {"query": ""}),
            "twice": replace(PROMPTED, prompts=PROMPTS | {"query": "Find:Find:"}),
        },
        texts=TEN,
        prompt="query",
    ),
    "prompt_document": Case(PROMPTED, texts=TEN, prompt="document"),
    "prompt_glue": Case(
        PROMPTED,
        {"space between": replace(PROMPTED, prompts=PROMPTS | {"glue": "ri "})},
        texts=TEN,
        prompt="glue",
    ),
    "prompt_spaced": Case(PROMPTED, texts=TEN, prompt="spaced"),
    "prompt_default": Case(
        replace(PROMPTED, default_prompt_name="query"),
        {"ignored": PROMPTED},
        texts=TEN,
    ),
    "prompt_default_other": Case(
        replace(PROMPTED, default_prompt_name="query"), texts=TEN, prompt="document"
    ),
    **{
        f"prompt_left_out_of_{mode}": Case(
            replace(PROMPTED, include_prompt=False, pooling=(mode,)),
            {
                "pooled": replace(PROMPTED, pooling=(mode,)),
                "never there": replace(PROMPTED, prompts=PROMPTS | {"query": ""}, pooling=(mode,)),
            },
            texts=TEN,
            prompt="query",
        )
        for mode in ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean")
    },
    "prompt_spaced_left_out": Case(
        replace(PROMPTED, include_prompt=False),
        {"pooled": PROMPTED},
        texts=TEN,
        prompt="spaced",
    ),
}

PADDING: dict[str, Case] = {
    "neighbours": Case(
        TinyBert(positions=160, heads=1), texts=("alpha", *LONG_TEXTS), mask_slips=True
    ),
}

EMBEDDINGS: dict[str, Case] = {
    "types_two": _case(
        TinyBert(), dropped={"types_row": "none"}, second_row={"types_row": "second"}
    ),
    "types_one": _case(TinyBert(types=1), dropped={"types_row": "none"}),
    "positions": _case(TinyBert(), from_one={"positions_from": 1}, from_two={"positions_from": 2}),
    "eps_large": _case(TinyBert(eps=0.05), fixed={"eps": 1e-12}),
    "eps_small": _case(TinyBert(eps=1e-5), fixed={"eps": 1e-2}),
}

ERF = ("gelu", "gelu_python")
TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh")
ACTS: dict[str, Case] = {
    f"act_{act}": _case(
        TinyBert(act=act, layers=3, seed=11),
        **{
            other: {"act": other}
            for other in ("gelu", "gelu_new", "quick_gelu", "relu", "silu", "tanh")
            if act not in (ERF if other == "gelu" else TANH if other == "gelu_new" else (other,))
            and (act, other) != ("swish", "silu")
        },
    )
    for act in (*ERF, *TANH, "quick_gelu", "relu", "silu", "swish", "tanh")
}

STORED: dict[str, Case] = {
    "stored_F32": _case(TinyBert(stored="F32"), rounded={"stored": "BF16"}),
    "stored_F16": _case(TinyBert(stored="F16"), other={"stored": "BF16"}),
    "stored_BF16": _case(TinyBert(stored="BF16"), other={"stored": "F16"}),
    "stored_mixed": _case(TinyBert(stored="mixed"), all_rounded={"stored": "BF16"}),
}

LIMITS: dict[str, Case] = {
    "limit_declared": Case(SHORT, {"baked": replace(SHORT, max_seq_length=8)}, texts=SHORT_TEXTS),
    "limit_of_the_tokenizer": Case(
        replace(
            SHORT,
            max_seq_length=None,
            tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 12},
        ),
        {"baked": replace(SHORT, max_seq_length=8)},
        texts=SHORT_TEXTS,
    ),
    "limit_of_the_positions": Case(
        replace(SHORT, max_seq_length=None),
        {"baked": replace(SHORT, max_seq_length=8)},
        texts=SHORT_TEXTS,
    ),
    "limit_cut_left": Case(
        replace(
            SHORT,
            tokenizer_config={"tokenizer_class": "BertTokenizer", "truncation_side": "left"},
        ),
        {"cut right": SHORT},
        texts=SHORT_TEXTS,
    ),
}

LETTER_CASE: dict[str, Case] = {
    "uncased_not_lowered": Case(TinyBert(do_lower_case=False), texts=CASE_TEXTS),
    "cased_lowered": Case(
        TinyBert(cased=True, do_lower_case=True),
        {"not lowered": TinyBert(cased=True, do_lower_case=False)},
        texts=CASE_TEXTS,
    ),
    "cased": Case(TinyBert(cased=True), texts=CASE_TEXTS),
    "tokenizer_config_keeps_accents": Case(
        TinyBert(tokenizer_config={"tokenizer_class": "BertTokenizerFast", "strip_accents": False}),
        texts=CASE_TEXTS,
    ),
    "tokenizer_config_keeps_case": Case(
        TinyBert(tokenizer_config={"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
        texts=CASE_TEXTS,
    ),
    # Of a BERT tokenizer the library sets all three switches: to what tokenizer_config.json says,
    # else to lowering, no word on accents, and splitting CJK, whatever tokenizer.json has.
    "tokenizer_config_without_a_class": Case(
        TinyBert(tokenizer_config={"do_lower_case": False}), texts=CASE_TEXTS
    ),
    "tokenizer_config_without_a_case": Case(
        TinyBert(cased=True, says_case=False), texts=CASE_TEXTS
    ),
    "tokenizer_config_without_a_word_on_accents": Case(
        TinyBert(strip_accents=False), texts=CASE_TEXTS
    ),
}

CASES: dict[str, Case] = {
    **HEADS,
    **POOLING,
    **NORMALIZE,
    **DENSE,
    **PROMPT,
    **PADDING,
    **EMBEDDINGS,
    **ACTS,
    **STORED,
    **LIMITS,
    **LETTER_CASE,
}
