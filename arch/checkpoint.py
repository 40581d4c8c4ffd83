"""What a model folder says of itself: config.json and the files of sentence-transformers.

A folder is either plain (config.json, tokenizer.json, weights: mean pooling, or the last token of a
causal model, as the sentence-transformers library treats it) or lists its modules in modules.json:
a Transformer, a Pooling, then Dense and Normalize modules in any number. Anything else is refused
by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from arch.errors import CheckpointError
from arch.json_file import JsonFile, read_json
from arch.packed_weights import PackedWeights
from drivers.types import Activation, PoolMode

POOL_MODES: dict[str, PoolMode] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}

# One boolean a mode, in the order in which the vectors of several modes are concatenated.
OLD_POOL_KEYS: dict[str, PoolMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}

DenseActivation = Literal["identity", "sigmoid"] | Activation

DENSE_ACTIVATIONS: dict[str, DenseActivation] = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
}

TRANSFORMER_CONFIGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


BERT_TOKENIZERS = ("BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer")


@dataclass(frozen=True)
class DenseModule:
    """A linear projection of the pooled vector: act(x @ weight.T + bias); weights in `folder`."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    act: DenseActivation


@dataclass(frozen=True)
class NormalizeModule:
    """Division of the vector by its Euclidean norm."""


HeadModule = DenseModule | NormalizeModule


@dataclass(frozen=True)
class TokenizerSettings:
    """How a folder's tokenizer.json is to be used.

    declared_max_seq_len: the folder's own limit in tokens, special ones included, or None.
    lower_text: lower the text (str.lower) before the tokenizer sees it.
    normalizer: settings of tokenizer_config.json that overrule the BertNormalizer's.
    """

    file: Path
    declared_max_seq_len: int | None
    lower_text: bool
    truncation_side: Literal["left", "right"]
    normalizer: Mapping[str, bool | None]


@dataclass(frozen=True)
class Checkpoint:
    """A model folder, read. Weights are not opened yet.

    folder: where config.json, the tokenizer and the weights lie. module_folders: those of all
    modules, present or not. model_type: config.json's, "" where it has none. notes: what was
    decided by default, one sentence each. packed: weights as an earlier load packed them.
    """

    root: Path
    folder: Path
    module_folders: tuple[Path, ...]
    config: JsonFile
    model_type: str
    pool_modes: tuple[PoolMode, ...]
    include_prompt: bool
    pooled_width: int | None
    head: tuple[HeadModule, ...]
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    tokenizer: TokenizerSettings
    notes: tuple[str, ...]
    packed: PackedWeights | None = None

    @property
    def normalized(self) -> bool:
        """Whether the vectors come out with norm 1."""
        return bool(self.head) and isinstance(self.head[-1], NormalizeModule)

    def overridden(self, *, pooling: str | None, normalize: bool | None) -> Checkpoint:
        """The same folder with its pooling or its final Normalize replaced by the caller's choice.

        Raises CheckpointError for a pooling that does not exist.
        """
        changed = self
        if pooling is not None:
            if pooling not in POOL_MODES:
                known = ", ".join(POOL_MODES)
                raise CheckpointError(self.root, f"no pooling '{pooling}', have {known}")
            changed = replace(changed, pool_modes=(POOL_MODES[pooling],), pooled_width=None)
        if normalize is not None and normalize != changed.normalized:
            head = (*changed.head, NormalizeModule()) if normalize else changed.head[:-1]
            changed = replace(changed, head=head)
        return changed


def read_checkpoint(root: Path) -> Checkpoint:
    """Read a model folder's own description. Raises CheckpointError, naming file and key."""
    if not root.is_dir():
        raise CheckpointError(root, "is not a folder")
    notes: list[str] = []
    modules = _read_modules(root)
    if modules:
        folder = modules[0][1]
        pooling = JsonFile.read(modules[1][1] / "config.json")
        modes, include_prompt, width = _read_pooling(pooling)
        head = tuple(_read_head_module(kind, path) for kind, path in modules[2:])
        config = JsonFile.read(folder / "config.json")
    else:
        config = JsonFile.read(root / "config.json")
        folder, include_prompt, width, head = root, True, None, ()
        modes = ("last",) if _is_causal(config) else ("mean",)
        notes.append(f"no modules.json: {modes[0]} pooling, not normalised")
    prompts, default_prompt_name = _read_prompts(root / "config_sentence_transformers.json")
    return Checkpoint(
        root=root,
        folder=folder,
        module_folders=tuple(path for _, path in modules),
        config=config,
        model_type=config.string("model_type", default=""),
        pool_modes=modes,
        include_prompt=include_prompt,
        pooled_width=width,
        head=head,
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        tokenizer=_read_tokenizer_settings(folder, notes),
        notes=tuple(notes),
    )


def _is_causal(config: JsonFile) -> bool:
    """Whether the checkpoint predicts the next token, where the library pools the last one."""
    named = config.data.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    return isinstance(first, str) and first.endswith("ForCausalLM")


def _read_modules(root: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module, checked for kind and order; empty without modules.json."""
    path = root / "modules.json"
    if not path.exists():
        return []
    listed = read_json(path)
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise CheckpointError(path, "wanted a list of modules")
    modules = []
    for entry in listed:
        module = JsonFile(path, entry)
        kind = module.string("type")
        family, _, name = kind.rpartition(".")
        if not family.startswith("sentence_transformers") or name not in (
            "Transformer",
            "Pooling",
            "Dense",
            "Normalize",
        ):
            raise CheckpointError(
                path, f"module type '{kind}' is not one of Transformer, Pooling, Dense, Normalize"
            )
        modules.append((name, root / module.string("path", default="")))
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & set(kinds[2:]):
        raise CheckpointError(
            path,
            f"modules are {', '.join(kinds) or 'none'}; wanted Transformer, Pooling, then Dense or "
            "Normalize",
        )
    return modules


def _read_pooling(config: JsonFile) -> tuple[tuple[PoolMode, ...], bool, int | None]:
    """(modes, include_prompt, width) of a pooling file in its old or new spelling."""
    config.known_keys(
        {
            *OLD_POOL_KEYS,
            "pooling_mode",
            "word_embedding_dimension",
            "embedding_dimension",
            "include_prompt",
        }
    )
    if "pooling_mode" in config.data:
        named = config.data["pooling_mode"]
        modes = _named_modes(config, [named] if isinstance(named, str) else named)
    else:
        modes = tuple(
            mode for key, mode in OLD_POOL_KEYS.items() if config.boolean(key, default=False)
        )
        if not modes:
            raise CheckpointError(
                config.path, f"no pooling is on; known: {', '.join(OLD_POOL_KEYS)}"
            )
    old_width = config.integer("word_embedding_dimension", default=None)
    width = config.integer("embedding_dimension", default=old_width)
    return modes, config.boolean("include_prompt", default=True), width


def _named_modes(config: JsonFile, names: object) -> tuple[PoolMode, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise config.error("pooling_mode", "a mode or a list of modes")
    for name in names:
        if name not in POOL_MODES:
            raise config.error("pooling_mode", "modes among " + ", ".join(POOL_MODES))
    return tuple(POOL_MODES[name] for name in names)


def _read_head_module(kind: str, folder: Path) -> HeadModule:
    """A Dense or Normalize module. A Normalize folder may be absent: it holds nothing needed."""
    if kind == "Normalize":
        config = JsonFile.read_if_present(folder / "config.json")
        _require_plain_features(config)
        return NormalizeModule()
    config = JsonFile.read(folder / "config.json")
    _require_plain_features(config)
    if config.boolean("use_residual", default=False):
        raise config.error("use_residual", "false: a residual Dense module is not implemented")
    config.known_keys(
        {
            "in_features",
            "out_features",
            "bias",
            "activation_function",
            "use_residual",
            "module_input_name",
            "module_output_name",
        }
    )
    return DenseModule(
        folder=folder,
        in_features=config.integer("in_features"),
        out_features=config.integer("out_features"),
        bias=config.boolean("bias", default=True),
        act=config.choice(
            "activation_function", DENSE_ACTIVATIONS, default="torch.nn.modules.activation.Tanh"
        ),
    )


def _require_plain_features(config: JsonFile) -> None:
    """Refuse a module that reads or writes another feature than the sentence embedding."""
    for key in ("module_input_name", "module_output_name"):
        name = config.string(key, default=None)
        if name not in (None, "sentence_embedding"):
            raise config.error(key, "'sentence_embedding'")


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    config = JsonFile.read_if_present(path)
    prompts = config.data.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(text, str) or text is None for text in prompts.values()
    ):
        raise config.error("prompts", "an object of names and texts")
    texts = {name: text for name, text in prompts.items() if text is not None}
    default = config.string("default_prompt_name", default=None)
    if default is not None and default not in texts:
        known = ", ".join(texts) or "none"
        raise config.error("default_prompt_name", f"one of the prompts: {known}")
    return texts, default


def _read_tokenizer_settings(folder: Path, notes: list[str]) -> TokenizerSettings:
    file = folder / "tokenizer.json"
    if not file.exists():
        raise CheckpointError(
            file, "is missing; a tokenizer saved by an older library can be saved again as one"
        )
    transformer = JsonFile.read_if_present(
        next((folder / n for n in TRANSFORMER_CONFIGS if (folder / n).exists()), folder / "-")
    )
    config = JsonFile.read_if_present(folder / "tokenizer_config.json")
    declared = transformer.integer("max_seq_length", default=None)
    if declared is None:
        declared = _model_max_length(config)
    if declared is None:
        notes.append("no declared length limit: the model's position rows are the limit")
    side = config.choice("truncation_side", {"left": "left", "right": "right"}, default="right")
    return TokenizerSettings(
        file=file,
        declared_max_seq_len=declared,
        lower_text=transformer.boolean("do_lower_case", default=False),
        truncation_side="left" if side == "left" else "right",
        normalizer=_read_normalizer(config),
    )


def _read_normalizer(config: JsonFile) -> dict[str, bool | None]:
    """What tokenizer_config.json says of a BertNormalizer; empty for other tokenizer classes.

    `transformers` sets all three switches from this file, by its own defaults where the file says
    nothing, whatever tokenizer.json holds: for the BERT classes and where no class is named.
    """
    named = config.string("tokenizer_class", default=None)
    if named is not None and not named.startswith(BERT_TOKENIZERS):
        return {}
    strip = config.data.get("strip_accents")
    return {
        "lowercase": config.boolean("do_lower_case", default=True),
        "strip_accents": None if strip is None else config.boolean("strip_accents", default=True),
        "handle_chinese_chars": config.boolean("tokenize_chinese_chars", default=True),
    }


def _model_max_length(config: JsonFile) -> int | None:
    """The tokenizer's limit; transformers writes about 1e30 where there is none."""
    value = config.data.get("model_max_length")
    if value is None or (isinstance(value, (int, float)) and value > 1e9):
        return None
    return int(config.integer("model_max_length"))
