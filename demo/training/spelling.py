"""Numbers below one million in words, in English, German, French and Spanish.

num2words 0.5.14 writes "einhunderteinstausend" and "veintiuno mil", so the rules stand here.
"""

NUMBER_LANGUAGES = ("English", "German", "French", "Spanish")

_ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_ENGLISH_TENS = ". . twenty thirty forty fifty sixty seventy eighty ninety".split()
_GERMAN = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn "
    "sechzehn siebzehn achtzehn neunzehn"
).split()
_GERMAN_TENS = ". . zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
_FRENCH = (
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize "
    "dix-sept dix-huit dix-neuf"
).split()
_FRENCH_TENS = (
    ". . vingt trente quarante cinquante soixante soixante quatre-vingt quatre-vingt".split()
)
_SPANISH = (
    "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince "
    "dieciséis diecisiete dieciocho diecinueve veinte veintiuno veintidós veintitrés veinticuatro "
    "veinticinco veintiséis veintisiete veintiocho veintinueve"
).split()
_SPANISH_TENS = ". . . treinta cuarenta cincuenta sesenta setenta ochenta noventa".split()
_SPANISH_HUNDREDS = (
    ". ciento doscientos trescientos cuatrocientos quinientos seiscientos setecientos ochocientos "
    "novecientos"
).split()


def english(n: int) -> str:
    if n < 20:
        return _ENGLISH[n]
    if n < 100:
        return _ENGLISH_TENS[n // 10] + (f"-{_ENGLISH[n % 10]}" if n % 10 else "")
    size, name = (1000, "thousand") if n >= 1000 else (100, "hundred")
    rest = f" {english(n % size)}" if n % size else ""
    return f"{english(n // size)} {name}{rest}"


def german(n: int, final: bool = True) -> str:
    """`final`: nothing follows, so a closing one is "eins", not "ein"."""
    if n == 1 and not final:
        return "ein"
    if n < 20:
        return _GERMAN[n]
    if n < 100:
        unit = f"{german(n % 10, final=False)}und" if n % 10 else ""
        return unit + _GERMAN_TENS[n // 10]
    size, name = (1000, "tausend") if n >= 1000 else (100, "hundert")
    rest = german(n % size, final) if n % size else ""
    return german(n // size, final=False) + name + rest


def french(n: int, final: bool = True) -> str:
    """`final`: nothing follows, so "cents" and "quatre-vingts" keep their s."""
    if n < 20:
        return _FRENCH[n]
    if n < 100:
        tens, unit = _FRENCH_TENS[n // 10], n % 10 + (10 if n // 10 in (7, 9) else 0)
        if unit == 0:
            return tens + ("s" if n == 80 and final else "")
        return tens + (" et " if unit in (1, 11) and n < 80 else "-") + _FRENCH[unit]
    size, name = (1000, "mille") if n >= 1000 else (100, "cent")
    count, rest = divmod(n, size)
    if size == 100 and count > 1 and not rest and final:
        name = "cents"
    parts = [french(count, final=False)] if count > 1 else []
    return " ".join(parts + [name] + ([french(rest, final)] if rest else []))


def spanish(n: int, final: bool = True) -> str:
    """`final`: nothing follows, so a closing one is "uno", not "un"."""
    if n < 30:
        return _SPANISH[n] if final else {1: "un", 21: "veintiún"}.get(n, _SPANISH[n])
    if n < 100:
        return _SPANISH_TENS[n // 10] + (f" y {spanish(n % 10, final)}" if n % 10 else "")
    if n < 1000:
        if n == 100:
            return "cien"
        return _SPANISH_HUNDREDS[n // 100] + (f" {spanish(n % 100, final)}" if n % 100 else "")
    thousands = "mil" if n < 2000 else f"{spanish(n // 1000, final=False)} mil"
    return thousands + (f" {spanish(n % 1000, final)}" if n % 1000 else "")


_SPELL = {"English": english, "German": german, "French": french, "Spanish": spanish}


def spell(n: int, language: str) -> str:
    """The number 0 <= n < 10**6 in words, in one of NUMBER_LANGUAGES."""
    if not 0 <= n < 10**6:
        raise ValueError(f"spell: {n} is not in [0, 10**6)")
    return _SPELL[language](n)
