"""How scripts write: their marks, and whether spaces stand between words."""

import regex

BEFORE = "\"'“¿([{-"  # marks that join the next word
AFTER = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001 (marks that join the word before)
_SPOKEN = r"[\w\p{S}%&@#]"  # of a word, not only a mark
SPOKEN = regex.compile(rf"(?s){_SPOKEN}(?:.*{_SPOKEN})?")  # a word without the marks around it
_CLOSED = r"""[\p{Pe}\p{Pf}"']*\s*$"""
SENTENCE_ENDED = regex.compile(rf"[\p{{STerm}}…♪]{_CLOSED}")
CLAUSE_ENDED = regex.compile(rf"[,;:،、，；：]{_CLOSED}")  # noqa: RUF001

# Without spaces between words: by ISO 15924's codes, and the characters, with their punctuation, in a set of `regex`
UNSPACED = ("Hans", "Hant", "Hani", "Jpan", "Thai", "Laoo", "Mymr", "Khmr")
_PUNCTUATION = r"\u3001-\u3020\u30fb-\u30ff\uff00-\uff9f"
UNSPACED_CHARACTERS = rf"\p{{lb=SA}}\p{{Han}}\p{{Hiragana}}\p{{Katakana}}{_PUNCTUATION}"
RIGHT_TO_LEFT = "Adlm Arab Hebr Mand Nkoo Rohg Samr Syrc Thaa".split()
