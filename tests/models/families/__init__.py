"""The tiny models of the families beside BERT, and the cases that have goldens."""

from families import distilbert, modern_bert, mpnet, nomic_bert, qwen3, roberta
from families.tiny_model import Case

FAMILIES: dict[str, dict[str, Case]] = {
    "modern_bert": modern_bert.CASES,
    "nomic_bert": nomic_bert.CASES,
    "qwen3": qwen3.CASES,
    "roberta": roberta.CASES,
    "distilbert": distilbert.CASES,
    "mpnet": mpnet.CASES,
}

CASES: dict[str, Case] = {name: case for cases in FAMILIES.values() for name, case in cases.items()}
