"""Tells the languages of texts apart, by py3langid (langid.py, Lui and Baldwin 2012), where that is installed."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from speculative.common.errors import InputError


class LanguageDetector:
    def __init__(self, codes: Iterable[str]):
        """codes: of the languages. The first of a language's codes, such as zh-Hans and zh-Hant, stands for it."""
        latest_first = reversed([*codes])
        self._codes = {c.partition("-")[0].replace("nb", "no"): c for c in latest_first}

    @cached_property
    def _identifier(self) -> Any:
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ImportError:
            raise InputError("to detect languages: pip install -r requirements-apps.txt") from None
        identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        identifier.set_languages([label for label in identifier.labels if label in self._codes])
        return identifier

    def detect(self, text: str) -> tuple[str, float]:
        """The text's language, and how sure that is, up to 1. InputError if that cannot be told here."""
        label, share = self._identifier.classify(text)
        return self._codes.get(label, label), float(share)
