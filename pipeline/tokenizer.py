"""Text to encodings, as the model folder's tokenizer.json says and its settings correct.

Truncation and padding baked into tokenizer.json are undone; the length limit is set once, when the
tokenizer is opened, and never changes, so that threads may share it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

from arch.checkpoint import TokenizerSettings
from arch.errors import CheckpointError
from drivers.types import Encoding
from pipeline.errors import TextError, UsageError


@dataclass(frozen=True)
class TokenizedTexts:
    """Encodings of some texts.

    rows: (n,) the text that each encoding is of. truncated: (n,) whether it lost tokens to the
    length limit. refused: row -> reason, of the texts that have no encoding.
    """

    encodings: list[Encoding]
    rows: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    refused: dict[int, str]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each encoding, special ones included."""
        return np.array([len(e) for e in self.encodings], dtype=np.int64)


class Tokenizer:
    """A folder's tokenizer with a fixed length limit. Safe to share between threads."""

    def __init__(self, settings: TokenizerSettings, *, max_seq_len: int, vocab_size: int) -> None:
        """max_seq_len: the most tokens of a text, special ones included. vocab_size: rows of the
        model's token table.

        Raises CheckpointError where the file is damaged or has ids that the model has no row for,
        UsageError where the limit leaves no room beside the special tokens.
        """
        self.max_seq_len = max_seq_len
        self.lower_text = settings.lower_text
        self._file = settings.file
        self._fast = _open(settings)
        self.undone = _baked_in_limits(self._fast)
        self._fast.no_truncation()
        self._fast.no_padding()
        self._unlimited = FastTokenizer.from_str(self._fast.to_str())
        _require_ids_below(vocab_size, self._fast, settings)
        specials = self._fast.num_special_tokens_to_add(is_pair=False)
        if max_seq_len <= specials:
            raise UsageError(
                f"max_seq_len is {max_seq_len}, wanted more than the {specials} special tokens"
            )
        self._special_ids = frozenset(
            i for i, token in self._fast.get_added_tokens_decoder().items() if token.special
        )
        self._fast.enable_truncation(max_seq_len, direction=settings.truncation_side)

    def require_end_token(self) -> None:
        """Refuse a tokenizer that closes no text with a special token.

        Pooling the last token takes it: without one the vector is that of whatever word came last,
        and an empty text has none.
        """
        ids = self._fast.encode("").ids
        if not ids or ids[-1] not in self._special_ids:
            raise CheckpointError(
                self._file,
                "adds no special token at the end of a text, which pooling the last token "
                "('lasttoken') needs",
            )

    def encode(
        self, texts: Sequence[str], *, prompt: str = "", pool_prompt: bool = True
    ) -> TokenizedTexts:
        """Tokenize `prompt + text` for each text, nothing between the two.

        pool_prompt: where False, the prompt's tokens (and special ones before them) take part in
        attention but not in pooling. Raises TextError naming the first row of a text that is not a
        string, is not valid Unicode (a lone surrogate), or leaves no token to pool.
        """
        tokenized = self.encode_each(texts, prompt=prompt, pool_prompt=pool_prompt)
        for row, reason in sorted(tokenized.refused.items()):
            raise TextError(row, reason)
        return tokenized

    def encode_each(
        self, texts: Sequence[object], *, prompt: str = "", pool_prompt: bool = True
    ) -> TokenizedTexts:
        """As `encode`, but a text that cannot be tokenized is set aside with its reason."""
        try:
            skip = 0 if pool_prompt else self.prompt_tokens(prompt)
            self._prepared("", prompt)
        except ValueError as error:
            raise UsageError(f"the prompt {error}") from error
        refused: dict[int, str] = {}
        full: list[str] = []
        rows: list[int] = []
        for row, text in enumerate(texts):
            try:
                full.append(self._prepared(text, prompt))
                rows.append(row)
            except ValueError as error:
                refused[row] = str(error)
        encodings: list[Encoding] = []
        kept: list[int] = []
        truncated: list[bool] = []
        for row, one in zip(rows, self._fast.encode_batch_fast(full)):
            ids = np.array(one.ids, dtype=np.int32)
            types = np.array(one.type_ids, dtype=np.int32)
            if len(ids) == 0:
                refused[row] = "the tokenizer gives no token for this text"
            elif skip >= len(ids):
                refused[row] = f"the prompt's {skip} tokens leave none of {len(ids)} to pool"
            else:
                encodings.append(Encoding(ids, types if types.any() else None, skip))
                kept.append(row)
                truncated.append(bool(one.overflowing))
        return TokenizedTexts(
            encodings, np.array(kept, np.int64), np.array(truncated, bool), refused
        )

    @property
    def special_tokens(self) -> int:
        """Tokens that are added to every text."""
        return int(self._fast.num_special_tokens_to_add(is_pair=False))

    def prompt_tokens(self, prompt: str) -> int:
        """Leading tokens that a prompt takes: its own encoding without a closing special token."""
        if not prompt:
            return 0
        ids = self._fast.encode(self._prepared("", prompt)).ids
        return len(ids) - 1 if ids and ids[-1] in self._special_ids else len(ids)

    def offsets(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """(n, 2) character ranges of each text's own tokens: no prompt, no special, no limit."""
        seen = [text.lower() for text in texts] if self.lower_text else list(texts)
        encoded = self._unlimited.encode_batch(seen, add_special_tokens=False)
        ranges = [np.array(one.offsets, dtype=np.int64).reshape(-1, 2) for one in encoded]
        return [_before_lowering(r, t, s) for r, t, s in zip(ranges, texts, seen)]

    def _prepared(self, text: object, prompt: str) -> str:
        """The text for the tokenizer. Raises ValueError with the reason why there is none."""
        if not isinstance(text, str):
            raise ValueError(f"wanted a string, got {type(text).__name__} {_shown(text)}")
        full = prompt + text
        try:
            full.encode("utf-8")
        except UnicodeEncodeError as error:
            surrogate = ord(full[error.start])
            raise ValueError(f"holds the lone surrogate U+{surrogate:04X}") from error
        return full.lower() if self.lower_text else full


def _before_lowering(ranges: NDArray[np.int64], text: str, lowered: str) -> NDArray[np.int64]:
    """Ranges of the lowered text as ranges of the text; lowering can lengthen a character."""
    if len(text) == len(lowered):
        return ranges
    origin = np.repeat(np.arange(len(text)), [len(character.lower()) for character in text])
    return np.stack([origin[ranges[:, 0]], origin[ranges[:, 1] - 1] + 1], axis=1)


def _shown(value: object) -> str:
    """A value as an error shows it, whatever it is."""
    try:
        return f"{value!r:.40}"
    except ValueError:  # an integer of too many digits to print
        return "too long to show"


def _open(settings: TokenizerSettings) -> FastTokenizer:
    """The tokenizer without its baked-in truncation and padding, normalizer corrected."""
    try:
        text = settings.file.read_text(encoding="utf-8")
        spec = json.loads(text)
        normalizer = spec.get("normalizer") if isinstance(spec, dict) else None
        if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
            normalizer.update(settings.normalizer)
            text = json.dumps(spec, ensure_ascii=False)
        fast = FastTokenizer.from_str(text)
    except OSError as error:
        raise CheckpointError(settings.file, f"cannot be read: {error.strerror}") from error
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise CheckpointError(settings.file, f"is not a readable tokenizer: {error}") from error
    return fast


def _baked_in_limits(fast: FastTokenizer) -> tuple[str, ...]:
    """The truncation and padding that a tokenizer.json brings along, in words."""
    limits = []
    if fast.truncation is not None:
        limits.append(f"truncation at {fast.truncation['max_length']}")
    if fast.padding is not None:
        limits.append(f"padding to {fast.padding['length'] or 'the longest'}")
    return tuple(limits)


def _require_ids_below(vocab_size: int, fast: FastTokenizer, settings: TokenizerSettings) -> None:
    token, largest = max(
        fast.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1], default=("", -1)
    )
    if largest >= vocab_size:
        raise CheckpointError(
            settings.file,
            f"gives '{token}' the id {largest}, but the model has only {vocab_size} token rows",
        )
