"""The embedded speech pair: it hears its clips and drafts for them."""

import json

import pytest
from helpers.programs import DEMO, call

from apps.speech.audio import read
from apps.speech.options import TranscribeOptions
from apps.speech.reference import parse
from apps.speech.transcriber import Transcriber
from speculative.common.errors import InputError
from speculative.models.conversion import convert
from speculative.step.row import Stats

CLIPS = json.loads((DEMO / "speech" / "clips.json").read_text(encoding="utf-8"))
FILES = [DEMO / "speech" / name for name in CLIPS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that holds the converted pair."""
    folder = tmp_path_factory.mktemp("demo")
    for role in ("target", "draft"):
        output = folder / "mlx_models" / f"demo-speech-{role}"
        convert(str(DEMO / "speech" / role), output, dtype="float32")
    return folder


@pytest.fixture(scope="module")
def pair(folder):
    return Transcriber(*(folder / "mlx_models" / f"demo-speech-{r}" for r in ("target", "draft")))


def test_the_command_hears_every_clip(folder):
    done = call(*FILES, cwd=folder, script="transcribe.py")
    said = []
    for file, clip in zip(FILES, CLIPS.values(), strict=True):
        said += [f"{file}:", *(segment["text"] for segment in clip["segments"])]
    assert done.returncode == 0 and done.stdout.splitlines() == said


@pytest.mark.slow
def test_drafts_are_accepted_and_change_nothing(pair):
    assert pair.decoder.draft_model.encoder is pair.model.encoder  # found to be the same
    plain = [pair.transcribe(read(str(file)), TranscribeOptions(num_draft=0)) for file in FILES]
    assert [found.language for found in plain] == [clip["language"] for clip in CLIPS.values()]
    for num_draft, batch_size in ((5, 5), ("auto", 3)):
        options = TranscribeOptions(num_draft=num_draft)
        sounds = [pair.task(read(str(file)), options) for file in FILES]
        found = dict(pair.transcribe_all(sounds, options, batch_size))
        for i, expected in enumerate(plain):
            assert [s.tokens for s in found[i].segments] == [s.tokens for s in expected.segments]
        stats = sum((each.stats for each in found.values()), Stats())
        if num_draft == 5:
            lengths = stats.accepted_lengths
            assert stats.tokens_per_call > 3 and sum(lengths[n] for n in range(1, 5)) > 3


@pytest.mark.slow
def test_a_token_that_the_model_lacks_is_the_users_mistake(pair):
    options = TranscribeOptions(suppress_tokens=(999999,))
    with pytest.raises(InputError, match="suppress_tokens: no token 999999"):
        pair.transcribe(read(FILES[0]), options)


@pytest.mark.slow
def test_a_reference_drafts_and_changes_nothing(folder):
    alone = Transcriber(folder / "mlx_models" / "demo-speech-target")
    samples = read(str(DEMO / "speech" / "story.wav"))
    plain = alone.transcribe(samples, TranscribeOptions(num_draft=0))
    timed = tuple((s.start, s.end, s.text) for s in plain.segments)
    calls = []
    for reference in (timed, parse(plain.text), timed[::-1], parse("Of another text. Altogether")):
        options = TranscribeOptions(num_draft=8, reference=reference)
        drafted = alone.transcribe(samples, options)
        assert [s.tokens for s in drafted.segments] == [s.tokens for s in plain.segments]
        calls.append(drafted.stats.target_calls)
    assert calls[0] < calls[1] < plain.stats.target_calls / 2
