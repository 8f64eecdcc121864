"""The synthetic tasks of the embedded pair: prompts whose right answers are known exactly.

    translate number to German: 1284          -> eintausendzweihundertvierundachtzig
    translate English to French: The king ... -> Le roi ...
    repair: The kign sees the the house.      -> The king sees the house.

and paragraphs: several sentences to translate or to repair at once.

`training_example` and `held_out_example` draw from disjoint sets of numbers and sentences (split by
a hash of the text), so accuracy on the second is accuracy on inputs never trained on.

    python -m demo.training.tasks

writes held-out examples to demo/examples.jsonl, for the benchmark and the tests.
"""

import json
import random
import zlib
from dataclasses import asdict, dataclass

from demo.pair import FILE, KINDS, SHORT_KINDS, Example
from demo.training import spelling

SENTENCE_LANGUAGES = ("German", "French", "Spanish")
SHORT_WEIGHTS = (0.3, 0.45, 0.25)
PARAGRAPH_SENTENCES = (2, 6)
BLOCK, BLOCKS = 48, 3  # examples of each kind in turn, how many times over


# ---------------------------------------------------------------------------------------------
# Sentences. Nouns: English, German, French and Spanish, each singular/plural, with the genders
# (German m/f/n, French m/f, Spanish m/f). No French noun begins with a vowel: no elision.

_PEOPLE_TABLE = """
teacher/teachers    m Lehrer/Lehrer        m professeur/professeurs  m profesor/profesores
girl/girls          n Mädchen/Mädchen      f fille/filles            f niña/niñas
boy/boys            m Junge/Jungen         m garçon/garçons          m niño/niños
woman/women         f Frau/Frauen          f femme/femmes            f mujer/mujeres
husband/husbands    m Ehemann/Ehemänner    m mari/maris              m marido/maridos
king/kings          m König/Könige         m roi/rois                m rey/reyes
queen/queens        f Königin/Königinnen   f reine/reines            f reina/reinas
farmer/farmers      m Bauer/Bauern         m fermier/fermiers        m granjero/granjeros
doctor/doctors      m Arzt/Ärzte           m médecin/médecins        m médico/médicos
neighbor/neighbors  m Nachbar/Nachbarn     m voisin/voisins          m vecino/vecinos
sister/sisters      f Schwester/Schwestern f sœur/sœurs              f hermana/hermanas
brother/brothers    m Bruder/Brüder        m frère/frères            m hermano/hermanos
baker/bakers        m Bäcker/Bäcker        m boulanger/boulangers    m panadero/panaderos
"""

_THINGS_TABLE = """
house/houses        n Haus/Häuser          f maison/maisons          f casa/casas
book/books          n Buch/Bücher          m livre/livres            m libro/libros
car/cars            n Auto/Autos           f voiture/voitures        m coche/coches
table/tables        m Tisch/Tische         f table/tables            f mesa/mesas
letter/letters      m Brief/Briefe         f lettre/lettres          f carta/cartas
key/keys            m Schlüssel/Schlüssel  f clé/clés                f llave/llaves
garden/gardens      m Garten/Gärten        m jardin/jardins          m jardín/jardines
picture/pictures    n Bild/Bilder          f photo/photos            f foto/fotos
flower/flowers      f Blume/Blumen         f fleur/fleurs            f flor/flores
cup/cups            f Tasse/Tassen         f tasse/tasses            f taza/tazas
lamp/lamps          f Lampe/Lampen         f lampe/lampes            f lámpara/lámparas
bag/bags            f Tasche/Taschen       m sac/sacs                f bolsa/bolsas
boat/boats          n Boot/Boote           m bateau/bateaux          m barco/barcos
door/doors          f Tür/Türen            f porte/portes            f puerta/puertas
chair/chairs        m Stuhl/Stühle         f chaise/chaises          f silla/sillas
coat/coats          m Mantel/Mäntel        m manteau/manteaux        m abrigo/abrigos
hat/hats            m Hut/Hüte             m chapeau/chapeaux        m sombrero/sombreros
bridge/bridges      f Brücke/Brücken       m pont/ponts              m puente/puentes
apple/apples        m Apfel/Äpfel          f pomme/pommes            f manzana/manzanas
stone/stones        m Stein/Steine         f pierre/pierres          f piedra/piedras
"""

# English, German stem, French m/f/m plural/f plural (+: before the noun), Spanish m/f.
_ADJECTIVES_TABLE = """
small   klein    +petit/petite/petits/petites           pequeño/pequeña
big     groß     +grand/grande/grands/grandes           grande/grande
old     alt      +vieux/vieille/vieux/vieilles          viejo/vieja
pretty  hübsch   +joli/jolie/jolis/jolies               bonito/bonita
young   jung     +jeune/jeune/jeunes/jeunes             joven/joven
strong  stark    fort/forte/forts/fortes                fuerte/fuerte
new     neu      +nouveau/nouvelle/nouveaux/nouvelles   nuevo/nueva
red     rot      rouge/rouge/rouges/rouges              rojo/roja
green   grün     vert/verte/verts/vertes                verde/verde
black   schwarz  noir/noire/noirs/noires                negro/negra
white   weiß     blanc/blanche/blancs/blanches          blanco/blanca
heavy   schwer   lourd/lourde/lourds/lourdes            pesado/pesada
"""
_OF_PEOPLE, _OF_THINGS = slice(0, 6), slice(6, 12)

# Infinitive/singular/plural/participle.
_VERBS_TABLE = """
see/sees/see/seen            sehen/sieht/sehen/gesehen             voir/voit/voient/vu               ver/ve/ven/visto
buy/buys/buy/bought          kaufen/kauft/kaufen/gekauft           acheter/achète/achètent/acheté    comprar/compra/compran/comprado
find/finds/find/found        finden/findet/finden/gefunden         trouver/trouve/trouvent/trouvé    encontrar/encuentra/encuentran/encontrado
paint/paints/paint/painted   malen/malt/malen/gemalt               peindre/peint/peignent/peint      pintar/pinta/pintan/pintado
carry/carries/carry/carried  tragen/trägt/tragen/getragen          porter/porte/portent/porté        llevar/lleva/llevan/llevado
sell/sells/sell/sold         verkaufen/verkauft/verkaufen/verkauft vendre/vend/vendent/vendu         vender/vende/venden/vendido
take/takes/take/taken        nehmen/nimmt/nehmen/genommen          prendre/prend/prennent/pris       tomar/toma/toman/tomado
wash/washes/wash/washed      waschen/wäscht/waschen/gewaschen      laver/lave/lavent/lavé            lavar/lava/lavan/lavado
"""

# Singular/plural; the last one forms the perfect and takes the participle.
_AUXILIARIES = (
    ("wants to/want to", "will/wollen", "veut/veulent", "quiere/quieren"),
    ("can/can", "kann/können", "peut/peuvent", "puede/pueden"),
    ("must/must", "muss/müssen", "doit/doivent", "debe/deben"),
    ("has/have", "hat/haben", "a/ont", "ha/han"),
)

_TIMES = (
    ("today", "heute", "aujourd'hui", "hoy"),
    ("in the morning", "am Morgen", "le matin", "por la mañana"),
    ("in summer", "im Sommer", "en été", "en verano"),
    ("on Monday", "am Montag", "lundi", "el lunes"),
    ("in the evening", "am Abend", "le soir", "por la noche"),
    ("this year", "dieses Jahr", "cette année", "este año"),
)

_PLACES = (
    ("in the city", "in der Stadt", "dans la ville", "en la ciudad"),
    ("near the river", "am Fluss", "près de la rivière", "cerca del río"),
    ("in the village", "im Dorf", "dans le village", "en el pueblo"),
    ("behind the church", "hinter der Kirche", "derrière l'église", "detrás de la iglesia"),
    ("at the market", "auf dem Markt", "au marché", "en el mercado"),
    ("in the kitchen", "in der Küche", "dans la cuisine", "en la cocina"),
    ("next to the station", "neben dem Bahnhof", "à côté de la gare", "junto a la estación"),
    ("in the forest", "im Wald", "dans la forêt", "en el bosque"),
)


def _nouns(table: str) -> list[tuple]:
    rows = [line.split() for line in table.strip().splitlines()]
    return [(r[0].split("/"), *((r[i], r[i + 1].split("/")) for i in (1, 3, 5))) for r in rows]


_PEOPLE, _THINGS = _nouns(_PEOPLE_TABLE), _nouns(_THINGS_TABLE)
_ADJECTIVES = [line.split() for line in _ADJECTIVES_TABLE.strip().splitlines()]
_VERBS = [
    [forms.split("/") for forms in line.split()] for line in _VERBS_TABLE.strip().splitlines()
]

_DETERMINERS = ("the", "my", "number")
_GERMAN_DEFINITE = {
    "m": ("der", "den"),
    "f": ("die", "die"),
    "n": ("das", "das"),
    "p": ("die", "die"),
}
_GERMAN_ENDING = {  # (nominative, accusative) after the definite article, after "mein"
    "the": {"m": ("e", "en"), "f": ("e", "e"), "n": ("e", "e"), "p": ("en", "en")},
    "my": {"m": ("er", "en"), "f": ("e", "e"), "n": ("es", "es"), "p": ("en", "en")},
}
_MEIN_ENDING = {"m": ("", "en"), "f": ("e", "e"), "n": ("", ""), "p": ("e", "e")}


@dataclass(frozen=True)
class _NounPhrase:
    noun: tuple
    determiner: str  # one of _DETERMINERS
    count: int  # 1, or the number of the plural
    adjective: list | None
    accusative: bool

    @property
    def plural(self) -> bool:
        return self.count != 1

    def english(self) -> str:
        determiner = (
            spelling.english(self.count) if self.determiner == "number" else self.determiner
        )
        words = [determiner, self.adjective and self.adjective[0], self.noun[0][self.plural]]
        return " ".join(filter(None, words))

    def german(self) -> str:
        gender, forms = self.noun[1]
        key, case = "p" if self.plural else gender, int(self.accusative)
        if self.determiner == "number":
            determiner, ending = spelling.german(self.count), "e"
        else:
            ending = _GERMAN_ENDING[self.determiner][key][case]
            determiner = _GERMAN_DEFINITE[key][case]
            if self.determiner == "my":
                determiner = "mein" + _MEIN_ENDING[key][case]
        words = [determiner, self.adjective and self.adjective[1] + ending, forms[self.plural]]
        return " ".join(filter(None, words))

    def french(self) -> str:
        gender, forms = self.noun[2]
        key = "p" if self.plural else gender
        determiner = {
            "the": {"m": "le", "f": "la", "p": "les"}[key],
            "my": {"m": "mon", "f": "ma", "p": "mes"}[key],
            "number": spelling.french(self.count),
        }[self.determiner]
        words = [forms[self.plural]]
        if self.adjective:
            form = self.adjective[2].lstrip("+").split("/")[(gender == "f") + 2 * self.plural]
            words.insert(0 if self.adjective[2].startswith("+") else 1, form)
        return " ".join([determiner, *words])

    def spanish(self) -> str:
        gender, forms = self.noun[3]
        determiner = {
            "the": {"m": ("el", "los"), "f": ("la", "las")}[gender][self.plural],
            "my": ("mi", "mis")[self.plural],
            "number": spelling.spanish(self.count),
        }[self.determiner]
        words = [determiner, forms[self.plural]]
        if self.adjective:
            form = self.adjective[3].split("/")[gender == "f"]
            if self.plural:
                form = {"joven": "jóvenes"}.get(form, form + "s")
            words.append(form)
        return " ".join(words)


@dataclass(frozen=True)
class _Sentence:
    subject: _NounPhrase
    verb: list
    auxiliary: tuple | None
    object: _NounPhrase
    time: tuple | None
    place: tuple | None

    def text(self, language: str) -> str:
        index = ("English", *SENTENCE_LANGUAGES).index(language)
        say = language.lower()
        subject, object_ = getattr(self.subject, say)(), getattr(self.object, say)()
        infinitive, singular, plural, participle = self.verb[index]
        finite, tail = (plural if self.subject.plural else singular), None
        if self.auxiliary:
            finite = self.auxiliary[index].split("/")[self.subject.plural]
            tail = participle if self.auxiliary is _AUXILIARIES[-1] else infinitive
        time = self.time and self.time[index]
        place = self.place and self.place[index]
        if language == "German":  # the finite verb comes second, the other one last
            words = [time, finite, subject] if time else [subject, finite]
            words += [object_, place, tail]
        else:
            words = [time and time + ("," if language == "French" else ""), subject, finite, tail]
            words += [object_, place]
        text = " ".join(filter(None, words))
        return text[0].upper() + text[1:] + "."


def _noun_phrase(
    rng: random.Random, table: list, adjectives: list, accusative: bool
) -> _NounPhrase:
    determiner = rng.choice(_DETERMINERS)
    count = rng.randint(2, 12) if determiner == "number" or rng.random() < 0.4 else 1
    adjective = rng.choice(adjectives) if rng.random() < 0.6 else None
    return _NounPhrase(rng.choice(table), determiner, count, adjective, accusative)


def _sentence(rng: random.Random) -> _Sentence:
    return _Sentence(
        subject=_noun_phrase(rng, _PEOPLE, _ADJECTIVES[_OF_PEOPLE], accusative=False),
        verb=rng.choice(_VERBS),
        auxiliary=rng.choice(_AUXILIARIES) if rng.random() < 0.5 else None,
        object=_noun_phrase(
            rng, _THINGS, _ADJECTIVES[:3] + _ADJECTIVES[_OF_THINGS], accusative=True
        ),
        time=rng.choice(_TIMES) if rng.random() < 0.6 else None,
        place=rng.choice(_PLACES) if rng.random() < 0.8 else None,
    )


# ---------------------------------------------------------------------------------------------
# Repairs: English sentences with misspelt, doubled and joined words.


def _lexicon() -> set[str]:
    """Every lower-case word that an English sentence of the grammar can hold."""
    phrases = [f for noun in _PEOPLE + _THINGS for f in noun[0]] + [a[0] for a in _ADJECTIVES]
    phrases += [form for verb in _VERBS for form in verb[0]]
    phrases += [form for auxiliary in _AUXILIARIES for form in auxiliary[0].split("/")]
    phrases += (
        [t[0] for t in _TIMES + _PLACES]
        + [spelling.english(n) for n in range(2, 13)]
        + ["the", "my"]
    )
    return {word.lower() for phrase in phrases for word in phrase.split()}


def _misspellings(word: str) -> set[str]:
    """`word` with one letter missing, one doubled, or two neighbours swapped."""
    missing = {word[:i] + word[i + 1 :] for i in range(len(word))}
    doubled = {word[:i] + word[i] + word[i:] for i in range(len(word))}
    swapped = {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)}
    return missing | doubled | swapped


def _unambiguous_misspellings() -> dict[str, list[str]]:
    """word -> the misspellings that no other word has and that are no words themselves."""
    lexicon = _lexicon()
    sources: dict[str, set[str]] = {}
    for word in lexicon:
        for wrong in _misspellings(word):
            sources.setdefault(wrong, set()).add(word)
    table: dict[str, list[str]] = {word: [] for word in lexicon if len(word) > 3}
    for wrong in sorted(sources):
        (word, *others) = sources[wrong]
        if not others and wrong not in lexicon and word in table:
            table[word].append(wrong)
    return table


_MISSPELLINGS = _unambiguous_misspellings()


def _damage(text: str, rng: random.Random) -> str:
    """One to three local errors, at least two words apart: each can be undone without guessing."""
    words = text.split(" ")
    places = sorted(rng.sample(range(len(words)), rng.randint(1, 3)))
    places = [p for i, p in enumerate(places) if i == 0 or p - places[i - 1] > 2]
    for place in reversed(places):
        word, error = words[place], rng.random()
        bare = word.rstrip(".")
        wrongs = _MISSPELLINGS.get(bare)
        if error < 0.7 and wrongs:
            words[place] = rng.choice(wrongs) + word[len(bare) :]
        elif error < 0.85 and word == bare and place + 1 < len(words):
            words[place : place + 2] = [word + words[place + 1]]
        elif word == bare:
            words[place : place + 1] = [word, word]
    return " ".join(words)


# ---------------------------------------------------------------------------------------------


def _is_held_out(text: str) -> bool:
    return zlib.crc32(text.encode()) % 20 == 0


def _draw(kind: str, rng: random.Random) -> tuple[str, Example]:
    """One short example and the text that decides on which side of the split it falls."""
    if kind == "number":
        n = rng.randrange(10 ** rng.choice((2, 3, 4, 5, 6, 6, 6)))
        language = rng.choice(spelling.NUMBER_LANGUAGES)
        return str(n), Example(
            kind, f"translate number to {language}: {n}", spelling.spell(n, language)
        )
    english = _sentence(rng)
    text = english.text("English")
    if kind == "sentence":
        language = rng.choice(SENTENCE_LANGUAGES)
        return text, Example(
            kind, f"translate English to {language}: {text}", english.text(language)
        )
    key = text
    if rng.random() < 0.5:
        text = f"{text} {_sentence(rng).text('English')}"
    return key, Example(kind, f"repair: {_damaged(text, rng)}", text)


def _damaged(text: str, rng: random.Random) -> str:
    """`text` with at least one error."""
    damaged = text
    while damaged == text:
        damaged = _damage(text, rng)
    return damaged


def _paragraph(rng: random.Random, held_out: bool) -> Example:
    """Sentences that are all of the same side of the split."""
    sentences: list[_Sentence] = []
    count = rng.randint(*PARAGRAPH_SENTENCES)
    while len(sentences) < count:
        sentence = _sentence(rng)
        if _is_held_out(sentence.text("English")) == held_out:
            sentences.append(sentence)
    english = [sentence.text("English") for sentence in sentences]
    if rng.random() < 0.5:
        damaged = [_damaged(text, rng) for text in english]
        return Example("paragraph", f"repair: {' '.join(damaged)}", " ".join(english))
    language = rng.choice(SENTENCE_LANGUAGES)
    return Example(
        "paragraph",
        f"translate English to {language}: {' '.join(english)}",
        " ".join(sentence.text(language) for sentence in sentences),
    )


def _example(rng: random.Random, kind: str | None, held_out: bool) -> Example:
    kind = kind or rng.choices(SHORT_KINDS, SHORT_WEIGHTS)[0]
    if kind == "paragraph":
        return _paragraph(rng, held_out)
    while True:
        key, example = _draw(kind, rng)
        if _is_held_out(key) == held_out:
            return example


def training_example(rng: random.Random, kind: str | None = None) -> Example:
    """A random example of `kind` (of a random short kind when None) from the training side."""
    return _example(rng, kind, held_out=False)


def held_out_example(rng: random.Random, kind: str | None = None) -> Example:
    """A random example of `kind` (of a random short kind when None) never used in training."""
    return _example(rng, kind, held_out=True)


def held_out_lines() -> list[str]:
    """The lines of demo/examples.jsonl."""
    rng = random.Random(0)
    kinds = [kind for kind in KINDS for _ in range(BLOCK)] * BLOCKS
    examples = [held_out_example(rng, kind) for kind in kinds]
    return [json.dumps(asdict(example), ensure_ascii=False) for example in examples]


if __name__ == "__main__":
    FILE.write_text("\n".join(held_out_lines()) + "\n", encoding="utf-8")
