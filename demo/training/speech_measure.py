"""Measure the embedded speech pair on held-out texts, or make its clips.

    python -m demo.training.speech_measure
    python -m demo.training.speech_measure --clips

Needs what speech_train.py needs.
"""

import argparse
import json
import random
import wave
from typing import Any

import numpy as np
import torch

from demo.training import speech_data as data
from demo.training.speech_train import END, FIRST_TIME, IDS, SPEECH, Text, load

CLIPS = {  # language, kind, how many utterances
    "numbers.wav": ("en", "number", 3),
    "sentence.wav": ("en", "sentence", 1),
    "story.wav": ("en", "sentence", 6),
    "german.wav": ("de", "sentence", 2),
    "german-number.wav": ("de", "number", 1),
}


def times_right(rows: torch.Tensor, files: list) -> float:
    """The share of rows in which every timestamp is within 0.1 s."""
    said = [[(i - FIRST_TIME) / 50 for i in row if i >= FIRST_TIME] for row in rows.tolist()]
    true = [[time for begin, end, _ in spans for time in (begin, end)] for _, spans in files]
    pairs = zip(said, true, strict=True)
    right = [len(a) == len(b) and np.allclose(a, b, rtol=0, atol=0.1) for a, b in pairs]
    return sum(right) / len(right)


@torch.no_grad()
def scores(target: Any, draft: Any, text: Text, language: str, groups: list) -> dict[str, float]:
    """Shares of files that come right, each the utterances of a group, which fit a window; `agrees`:
    the share of the target's tokens that the draft says there."""
    files = [data.file_of(random.Random(i), group) for i, group in enumerate(groups)]
    features = torch.zeros(len(files), data.BINS, data.FRAMES)
    for row, (samples, _) in zip(features, files, strict=True):
        made = torch.tensor(data.file_features(samples))[:, : data.FRAMES]
        row[:, : made.shape[1]] = made
    wanted = np.array([" ".join(one.text for one in group) for group in groups])
    options = dict(language=language, task="transcribe", force_unique_generate_call=True)
    plain = target.generate(features, return_timestamps=False, **options)
    timed = target.generate(features, return_timestamps=True, **options)
    drafted = draft.generate(features, return_timestamps=True, **options)
    said = timed[:, 3:]
    same = draft(features, decoder_input_ids=timed).logits[:, 2:-1].argmax(-1) == said
    found = target.detect_language(features) == IDS[f"<|{language}|>"]
    return dict(
        language=found.float().mean().item(),
        text=np.mean(text.written(timed) == wanted).item(),
        text_without_times=np.mean(text.written(plain) == wanted).item(),
        times=times_right(timed, files),
        draft_text=np.mean(text.written(drafted) == wanted).item(),
        agrees=same[said != END].float().mean().item(),
    )


@torch.no_grad()
def score_long(model: Any, text: Text, language: str, groups: list) -> float:
    """The share of files of many windows, decoded by transformers, whose text is right."""
    right = 0
    for i, group in enumerate(groups):
        features = torch.tensor(data.file_features(data.file_of(random.Random(i), group)[0]))[None]
        options = dict(language=language, task="transcribe", return_timestamps=True)
        rows = model.generate(features, **options)
        right += text.written(rows) == [" ".join(one.text for one in group)]
    return right / len(groups)


def measure(count: int, spoken: data.Pool) -> None:
    """Prints the shares of held-out texts that come right, of `count` of each kind."""
    text, target, draft, rng = Text(), load("target"), load("draft"), random.Random(2)
    for language, utterances in spoken.items():
        several = [rng.sample(utterances, rng.choice((2, 3))) for _ in range(9 * count)]
        several = [g for g in several if sum(u.frames + 90 for u in g) + 50 < data.FRAMES]
        kinds = {
            "numbers": [[one] for one in utterances[: 2 * count : 2]],
            "sentences": [[one] for one in utterances[1 : 2 * count : 2]],
            "two or three": several[:count],
        }
        for kind, groups in kinds.items():
            score = scores(target, draft, text, language, groups)
            print(language, kind, {name: round(x, 3) for name, x in score.items()}, flush=True)
        files = [rng.sample(utterances, 8) for _ in range(max(1, count // 5))]
        print(language, "files of eight", score_long(target, text, language, files), flush=True)


def make_clips(seed: int) -> None:
    """Writes the clips and their texts, none of which was trained on."""
    rng, speaker, told = random.Random(seed), data.Speaker(), {}
    for name, (language, kind, count) in CLIPS.items():
        voice = data.VOICES[language][0]
        texts = [data.draw(rng, language, kind, held_out=True) for _ in range(count)]
        said = [data.utterance(rng, speaker, language, text, voice) for text in texts]
        samples, spans = data.file_of(rng, said)
        with wave.open(str(SPEECH / name), "wb") as file:
            file.setparams((1, 2, data.RATE, 0, "NONE", "not compressed"))
            file.writeframes(samples.astype("<i2").tobytes())
        segments = [dict(start=start, end=end, text=text) for start, end, text in spans]
        told[name] = dict(language=language, text=" ".join(texts), segments=segments)
    told_json = json.dumps(told, ensure_ascii=False, indent=1) + "\n"
    (SPEECH / "clips.json").write_text(told_json, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clips", action="store_true", help="write demo/speech's clips anew")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the clips (default: 1, the committed ones)"
    )
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    if args.clips:
        make_clips(args.seed)
    else:
        measure(100, data.pool(random.Random(1), data.Speaker(), 200, held_out=True))


if __name__ == "__main__":
    main()
