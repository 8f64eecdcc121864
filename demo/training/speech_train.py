"""Train the embedded speech pair: a Whisper, and a draft that shares its encoder.

    python -m demo.training.speech_train tokenizer
    python -m demo.training.speech_train target
    python -m demo.training.speech_train draft

writes demo/speech in Hugging Face format (float16 safetensors). Needs requirements-dev.txt and
espeak-ng; demo/speech/README.md tells what the committed pair was trained with.

From scratch and on little sound a Whisper learns the language of its texts and stays deaf. Three
things make it listen, of which none is left in the model: the encoder also has to name the word at
each position, two heads in two layers of the decoder are led to the sound of the next token, and
the first weights are large enough for sound to matter beside positions.
"""

import argparse
import copy
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import (
    AddedToken,
    GenerationConfig,
    WhisperConfig,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from demo.training import speech_data as data

SPEECH = Path(__file__).parents[1] / "speech"
PIECES = 768
POSITIONS = data.FRAMES // 2  # of the encoder, 0.02 s each: a timestamp for each
MOST_TOKENS = 160  # of previous text, prefix and text together
SPECIAL = (
    "<|endoftext|> <|startoftranscript|> <|en|> <|de|> <|translate|> <|transcribe|> "
    "<|startoflm|> <|startofprev|> <|nospeech|> <|notimestamps|>"
).split()
IDS = {token: PIECES + i for i, token in enumerate(SPECIAL)}
END, START, PREVIOUS = IDS["<|endoftext|>"], IDS["<|startoftranscript|>"], IDS["<|startofprev|>"]
NO_SPEECH, NO_TIMESTAMPS = IDS["<|nospeech|>"], IDS["<|notimestamps|>"]
FIRST_TIME = PIECES + len(SPECIAL)
LAST_START = 50  # the latest timestamp, in positions, at which a text may begin
LAYERS = {"target": 4, "draft": 1}  # of the decoder
MINUTES = {"target": 50, "draft": 12}  # on one core
GUIDED_LAYERS = {"target": (1, 2), "draft": (0,)}
GUIDED_HEADS = 2
UTTERANCES, ROWS = 3000, 16  # of each language; of a batch


# ---------------------------------------------------------------------------------------------
# Tokens


def make_tokenizer(folder: Path) -> None:
    """Byte-level pairs, as Whisper has them, learned from the words."""
    rng = random.Random(0)
    words = [
        word
        for language in data.LANGUAGES
        for kind in ("number", "sentence")
        for _ in range(5000)
        for word in data.words_of(data.draw(rng, language, kind))
    ]
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=PIECES, initial_alphabet=alphabet, show_progress=False)
    learned.train_from_iterator(words, trainer)
    model = json.loads(learned.to_str())["model"]
    tokenizer = WhisperTokenizer(
        model["vocab"],
        [tuple(pair) for pair in model["merges"]],
        pad_token=SPECIAL[0],
        additional_special_tokens=SPECIAL[1:],
        model_max_length=MOST_TOKENS,
    )
    times = [f"<|{i * 0.02:.2f}|>" for i in range(POSITIONS + 1)]
    tokenizer.add_tokens([AddedToken(time, normalized=False, special=False) for time in times])
    assert tokenizer.convert_tokens_to_ids([*SPECIAL, *times]) == list(
        range(PIECES, FIRST_TIME + len(times))
    )
    tokenizer.save_pretrained(folder)
    data.EXTRACTOR.save_pretrained(folder)


class Text:
    """Texts as tokens, each with the word that it belongs to."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(SPEECH / "target" / "tokenizer.json"))

    def tokens(self, words: list[str]) -> tuple[list[int], list[int]]:
        """The tokens of the words written together, and each one's word."""
        encoded = self.tokenizer.encode(" " + "".join(words).lstrip(" -"), add_special_tokens=False)
        ends = np.cumsum([len(word) for word in words]) + (words[0][0] not in " -")
        return encoded.ids, [int((ends <= begin).sum()) for begin, _ in encoded.offsets]

    def written(self, rows: torch.Tensor) -> list[str]:
        kept = [[token for token in row if token < PIECES] for row in rows.tolist()]
        return [text.strip() for text in self.tokenizer.decode_batch(kept)]


Said = list[tuple[int, tuple[int, int]]]  # tokens, and the positions [begin, end) of their sound


def said_in(text: Text, segments: list[data.Segment], timestamps: bool) -> Said:
    """The text to learn for a window, as in Whisper's training: of a last segment that is cut off by
    the window's end only its start, but where it is the only one the words that are whole."""
    said: Said = []

    def moment(frame: int) -> None:
        frame = max(0, frame)
        position = round(frame / 2) if said else min(round(frame / 2), LAST_START)
        if timestamps:
            said.append((FIRST_TIME + position, (frame // 2 - 2, frame // 2 + 3)))

    for segment in segments:
        words = segment.words()
        whole = segment.end <= data.FRAMES
        if (said and not whole) or not words:
            moment(segment.begin)
            break
        moment(segment.begin)
        spans = [(begin // 2, (end + 1) // 2) for _, begin, end in words]
        tokens, owners = text.tokens([word for word, _, _ in words])
        said += [(token, spans[owner]) for token, owner in zip(tokens, owners, strict=True)]
        if whole:
            moment(segment.end)
    if not segments:
        moment(0)
    return said


def earlier(rng: random.Random, text: Text, utterances: list[data.Utterance]) -> list[int]:
    """Tokens as those of the windows before: the end of a transcript, with timestamps or without."""
    times = rng.random() < 0.7
    tokens: list[int] = []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 5))):
        chosen = rng.choice(utterances)
        begin = rng.randrange(POSITIONS - chosen.frames // 2)
        ends = [FIRST_TIME + begin, FIRST_TIME + begin + chosen.frames // 2] if times else []
        tokens += [*ends[:1], *text.tokens(data.words_of(chosen.text))[0], *ends[1:]]
    return [PREVIOUS, *tokens[-(MOST_TOKENS // 2 - 1) :]]


Batch = dict[str, torch.Tensor]


def batch(rng: random.Random, text: Text, spoken: data.Pool) -> Batch:
    """features [B, 80, 600], units [B, 300], tokens and labels (-100: anything) [B, T], and spans
    [B, T, 300]: 1 where the sound of the label is."""
    prompted = rng.random() < 0.3
    tokens = torch.full((ROWS, MOST_TOKENS), END)
    labels = torch.full((ROWS, MOST_TOKENS), -100)
    spans = torch.zeros(ROWS, MOST_TOKENS, POSITIONS)
    units = torch.zeros(ROWS, POSITIONS, dtype=torch.long)
    features, width = [], 0
    for row in range(ROWS):
        timestamps = rng.random() < 0.75
        window = data.window(rng, spoken, cut=timestamps)
        features.append(window.features)
        said = said_in(text, window.segments, timestamps)
        before = earlier(rng, text, spoken[window.language]) if prompted else []
        prefix = [*before, START, IDS[f"<|{window.language}|>"], IDS["<|transcribe|>"]]
        prefix += [] if timestamps else [NO_TIMESTAMPS]
        first, last = len(prefix) - 1, len(prefix) + len(said)
        tokens[row, :last] = torch.tensor(prefix + [token for token, _ in said])
        labels[row, first:last] = torch.tensor([token for token, _ in said] + [END])
        labels[row, len(before)] = prefix[len(before) + 1] if window.segments else NO_SPEECH
        for column, (_, (begin, end)) in enumerate(said, start=first):
            spans[row, column, max(0, begin) : end] = 1
        for segment in window.segments:
            for word, begin, end in segment.spans():
                units[row, max(0, begin // 2) : max(0, end // 2)] = data.unit_of(word)
        width = max(width, last)
    return dict(
        features=torch.tensor(np.stack(features)).transpose(1, 2),
        units=units,
        tokens=tokens[:, :width],
        labels=labels[:, :width],
        spans=spans[:, :width],
    )


# ---------------------------------------------------------------------------------------------
# Models


def new_model(role: str) -> Any:
    config = WhisperConfig(  # type: ignore[call-arg]
        vocab_size=FIRST_TIME + POSITIONS + 1,
        num_mel_bins=data.BINS,
        d_model=128,
        encoder_layers=LAYERS["target"],
        decoder_layers=LAYERS[role],
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        max_source_positions=POSITIONS,
        max_target_positions=MOST_TOKENS,
        **ends(),
        attn_implementation="eager",  # whose attention can be guided
    )
    model = WhisperForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if "conv" in name and parameter.ndim == 3:
            torch.nn.init.kaiming_normal_(parameter)
        elif "embed_tokens" in name:
            torch.nn.init.normal_(parameter, std=0.06)
        elif parameter.ndim == 2 and "embed_positions" not in name:
            torch.nn.init.xavier_uniform_(parameter)
    fast = copy.deepcopy(config)  # the encoder's attention needs no guide
    fast._attn_implementation = "sdpa"
    for module in model.model.encoder.modules():
        if hasattr(module, "config"):
            module.config = fast
    return model


def ends() -> dict[str, Any]:
    """The settings that config.json and generation_config.json share."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    suppressed = [Text().tokenizer.token_to_id("Ġ"), END]
    return dict.fromkeys(names, END) | dict(
        decoder_start_token_id=START, suppress_tokens=[], begin_suppress_tokens=suppressed
    )


def save(model: Any, role: str) -> None:
    """float16 weights, config.json and generation_config.json; the tokenizer's and the features'
    files beside them."""
    folder, scratch = SPEECH / role, SPEECH / role / "saving"
    folder.mkdir(parents=True, exist_ok=True)
    saved = copy.deepcopy(model).to(torch.float16)
    saved.generation_config = GenerationConfig(
        max_length=MOST_TOKENS,
        max_initial_timestamp_index=LAST_START,
        no_timestamps_token_id=NO_TIMESTAMPS,
        prev_sot_token_id=PREVIOUS,
        is_multilingual=True,
        return_timestamps=False,
        lang_to_id={f"<|{language}|>": IDS[f"<|{language}|>"] for language in data.LANGUAGES},
        task_to_id={task: IDS[f"<|{task}|>"] for task in ("translate", "transcribe")},
        **ends(),
    )
    saved.save_pretrained(scratch)
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        (scratch / file).replace(folder / file)
    shutil.rmtree(scratch)
    if role != "target":
        for file in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
            shutil.copy(SPEECH / "target" / file, folder / file)


def load(role: str) -> Any:
    return WhisperForConditionalGeneration.from_pretrained(
        SPEECH / role, dtype=torch.float32, attn_implementation="eager"
    ).eval()


# ---------------------------------------------------------------------------------------------
# Training


def decode(
    model: Any, sound: torch.Tensor, rows: Batch, guided: tuple[int, ...] = ()
) -> tuple[Any, Any]:
    """Logits [B, T, V], and how little of the attention of some heads of the `guided` layers lies on
    the sound of the next token."""
    out = model.model.decoder(
        input_ids=rows["tokens"], encoder_hidden_states=sound, output_attentions=bool(guided)
    )
    logits = model.proj_out(out.last_hidden_state)
    missed = torch.zeros(())
    told = rows["spans"].any(-1)  # [B, T]
    for layer in guided:
        attention = out.cross_attentions[layer][:, :GUIDED_HEADS]
        on_it = (attention * rows["spans"][:, None]).sum(-1)  # [B, heads, T]
        missed = missed - (on_it + 1e-6).log().mean(1)[told].mean() / len(guided)
    return logits, missed


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


class Schedule:
    """AdamW over the `minutes` that there are: the learning rate rises for a fiftieth of them, and
    falls to nothing in the end."""

    def __init__(self, model: torch.nn.Module, peak: float, minutes: float):
        self.model, self.peak = model, peak
        self.seconds, self.started = 60 * minutes, time.time()
        self.adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
        self.steps, self.over = 0, 0.0  # `over`: the share of the time that is

    def step(self, loss: torch.Tensor) -> None:
        for group in self.adam.param_groups:
            group["lr"] = self.peak * min(
                50 * self.over + 0.02, 1, max(1e-3, 1.2 * (1 - self.over))
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.adam.zero_grad()
        self.steps += 1
        self.over = (time.time() - self.started) / self.seconds

    def tell(self, **values: torch.Tensor) -> None:
        if self.steps % 50 == 0 or self.over >= 1:
            told = {name: round(value.item(), 4) for name, value in values.items()}
            print(f"{self.over:.2f} of the time, step {self.steps}: {told}", flush=True)


def train_target(spoken: data.Pool, minutes: float, seed: int) -> None:
    torch.manual_seed(seed)
    rng, text = random.Random(seed), Text()
    model = new_model("target")
    namer = torch.nn.Linear(model.config.d_model, len(data.units()) + 1)
    whole = torch.nn.ModuleDict(dict(model=model, namer=namer))
    schedule = Schedule(whole, 1.5e-3, minutes)
    while schedule.over < 1:
        rows = batch(rng, text, spoken)
        sound = model.model.encoder(rows["features"]).last_hidden_state
        named = functional.cross_entropy(namer(sound).flatten(0, 1), rows["units"].flatten())
        led = max(0.0, 1 - schedule.over / 0.6)
        logits, missed = decode(model, sound, rows, GUIDED_LAYERS["target"] if led else ())
        said = token_loss(logits, rows["labels"])
        schedule.step(said + (0.2 + 0.8 * led) * named + 0.3 * led * missed)
        schedule.tell(said=said, named=named, missed=missed)
    save(model, "target")


def train_draft(spoken: data.Pool, minutes: float, seed: int) -> None:
    """A decoder of one layer on the target's encoder, which stays as it is: begun with the first of
    the target's layers that were led, and stopped early."""
    torch.manual_seed(seed)
    rng, text = random.Random(seed), Text()
    target, model = load("target"), new_model("draft")
    model.model.encoder = copy.deepcopy(target.model.encoder)
    given = target.model.decoder.state_dict()
    own = {name: given[name.replace("layers.0", f"layers.{GUIDED_LAYERS['target'][0]}")]
           for name in model.model.decoder.state_dict()}  # fmt: skip
    model.model.decoder.load_state_dict(own)
    schedule = Schedule(model.model.decoder, 2e-3, minutes)
    while schedule.over < 1:
        rows = batch(rng, text, spoken)
        with torch.no_grad():
            sound = target.model.encoder(rows["features"]).last_hidden_state
            wanted = decode(target, sound, rows)[0]
        logits, missed = decode(model, sound, rows, GUIDED_LAYERS["draft"])
        learned = rows["labels"] != -100
        apart = functional.kl_div(
            logits[learned].log_softmax(-1),
            wanted[learned].log_softmax(-1),
            log_target=True,
            reduction="batchmean",
        )
        said = token_loss(logits, rows["labels"])
        schedule.step(said + apart + 0.3 * missed)
        same = (logits.argmax(-1) == wanted.argmax(-1))[learned].float().mean()
        schedule.tell(said=said, apart=apart, missed=missed, same=same)
    save(model, "draft")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["tokenizer", *MINUTES])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help=f"of training; default: {MINUTES}")
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    if args.what == "tokenizer":
        make_tokenizer(SPEECH / "target")
        return
    spoken = data.pool(random.Random(args.seed), data.Speaker(), UTTERANCES)
    train = train_target if args.what == "target" else train_draft
    train(spoken, args.minutes or MINUTES[args.what], args.seed)


if __name__ == "__main__":
    main()
