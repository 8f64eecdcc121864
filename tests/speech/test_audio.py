"""Sound files become samples, or one line about what is wrong with them."""

import io
import os
import re
import struct
import sys
import tempfile
import threading
import wave
from random import Random

import numpy as np
import pytest

pytest.importorskip("av", reason="PyAV is not installed: requirements-apps.txt")

import av
from av.stream import Disposition
from helpers.sounds import RATE, sound_file, tone

from apps.speech import audio
from apps.speech.audio import check_length, read
from speculative.common.errors import InputError

SILENCE = np.zeros([0, 1], np.int16)


def made(
    container: str, codec: str, seconds: float = 1, rate: int = RATE, channels: int = 1, **options
):
    sound = tone(seconds, rate).repeat(channels, 1)
    return sound_file(container, codec, sound, rate, **options)


WAV = made("wav", "pcm_s16le")
MP3 = made("mp3", "libmp3lame", 3)
M4A = made("ipod", "aac")
FILES = {
    "wav": WAV,
    "wav, 8 kHz": made("wav", "pcm_s16le", rate=8_000),
    "wav, 96 kHz, 24 bits, stereo": made("wav", "pcm_s24le", rate=96_000, channels=2),
    "wav, numbers with a point": made("wav", "pcm_f32le"),
    "mp3, stereo": made("mp3", "libmp3lame", rate=44_100, channels=2),
    "m4a": made("ipod", "aac", rate=44_100),
    "flac": made("flac", "flac", rate=48_000),
    "opus": made("ogg", "libopus", rate=48_000),
    "webm": made("webm", "libopus", rate=48_000),
    "video": made("mp4", "aac", rate=48_000, channels=2, video=True),
}
PLAYLIST = b"ffconcat version 1.0\nfile clip.wav\n"
LISTENER = (
    b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n"
)
LOCKED = made(
    "mp4", "aac", encryption_scheme="cenc-aes-ctr", encryption_key="a" * 32, encryption_kid="b" * 32
)
UNREADABLE = "no audio file that FFmpeg reads (Invalid data found when processing input)"
MISTAKES = {
    "empty": (b"", "is empty"),
    "encrypted": (LOCKED, "is encrypted"),
    "encrypted in another way": (
        M4A[:48] + Random(0).randbytes(M4A.index(b"moov") - 52) + M4A[M4A.index(b"moov") - 4 :],
        "is encrypted, or damaged all over",
    ),
    "text": (b"To be, or not to be\n" * 99, UNREADABLE),
    "half a wav header": (WAV[:30], UNREADABLE),
    "a wav header": (WAV[: WAV.index(b"data") + 8], "holds no audio"),
    "an unknown codec": (WAV.replace(b"fmt \x10\0\0\0\1", b"fmt \x10\0\0\0\0"), "holds no audio"),
    "half an m4a": (M4A[: len(M4A) // 2], UNREADABLE),
    "a video without sound": (sound_file("mp4", "aac", SILENCE, video=True), "holds no audio"),
    "one sample a second": (
        WAV.replace(struct.pack("<I", RATE), struct.pack("<I", 1), 1),
        "damaged: 1 samples a second",
    ),
    "a list of other files": (
        PLAYLIST,
        "no audio file that FFmpeg reads (Invalid argument)",
    ),
    "an address to listen at": (LISTENER, UNREADABLE),
}


def read_bytes(data: bytes, notes: list[str] | None = None, **wanted) -> np.ndarray:
    with tempfile.TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        file.write(data)
        file.seek(0)
        patch.setattr(sys, "stdin", file)
        return read("-", [].append if notes is None else notes.append, **wanted)


def mistake(source: str | bytes) -> str:
    with pytest.raises(InputError) as error:
        read_bytes(source) if isinstance(source, bytes) else read(source)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", FILES)
def test_sound_is_mono_at_16_khz(name, tmp_path, capfd):
    path = tmp_path / "clip"
    path.write_bytes(FILES[name])
    notes: list[str] = []
    samples = read(str(path), report=notes.append)
    assert samples.dtype == np.float32 and samples.ndim == 1
    assert abs(len(samples) - RATE) < 0.1 * RATE  # AAC fills its last frame up
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    assert abs(spectrum.argmax() * RATE / len(samples) - 440) < 2
    middle = samples[RATE // 4 : RATE // 2]
    assert np.sqrt(2 * np.mean(middle**2)) == pytest.approx(0.4, rel=0.1)
    assert (notes, *capfd.readouterr()) == ([], "", "")


def test_wav_at_16_khz_is_taken_as_it_is():
    np.testing.assert_array_equal(read_bytes(WAV), tone()[:, 0] / np.float32(32768))


@pytest.mark.parametrize("pyav", [True, False])
def test_channels_are_averaged_or_apart(monkeypatch, pyav):
    sound = np.hstack([tone(hertz=440), tone(hertz=1000)])
    file = sound_file("wav", "pcm_s16le", sound)
    if not pyav:
        monkeypatch.setattr(audio, "av", None)
    np.testing.assert_allclose(read_bytes(file), sound.mean(1) / 32768, atol=1 / 32768)
    for channels in ([2, 1], [2]):
        apart = read_bytes(file, channels=channels)
        np.testing.assert_array_equal(apart * 32768, sound.T[[n - 1 for n in channels]])
    for number in (0, 3):
        with pytest.raises(InputError, match=f"no channel {number}; there are 2"):
            read_bytes(file, channels=[1, number])


def test_the_rate_may_change_within_a_file():
    """The second part is as long and as high as it would be alone."""
    first = made("adts", "aac")
    second = made("adts", "aac", rate=44_100, channels=2)
    samples = read_bytes(first + second)
    assert len(samples) == pytest.approx(len(read_bytes(first)) + len(read_bytes(second)), abs=100)
    spectrum = np.abs(np.fft.rfft(samples[-RATE // 2 :]))
    assert abs(2 * spectrum.argmax() - 440) <= 4


@pytest.mark.parametrize("name", MISTAKES)
def test_what_holds_no_sound_is_one_line(name, tmp_path, monkeypatch):
    data, message = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clip.wav").write_bytes(WAV)  # which the list of files names
    (tmp_path / "file").write_bytes(data)
    assert mistake("file") == f"file: {message}"
    assert mistake(data) == f"standard input: {message}"


def test_what_cannot_be_opened_is_one_line(tmp_path):
    assert mistake(f"{tmp_path}/a.wav") == f"{tmp_path}/a.wav: No such file or directory"
    assert mistake(str(tmp_path)) == f"{tmp_path}: Is a directory"
    address = "https://a.org/b.mp3"
    assert mistake(address) == f"{address}: an address, not a file; download it first"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_one_line(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(WAV)
    path.chmod(0)
    assert mistake(str(path)) == f"{path}: Permission denied"


def test_standard_input_may_be_a_pipe(monkeypatch):
    """Which cannot go back from the index at an m4a's end."""
    data = made("ipod", "aac", 20)
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe, open(writing, "wb") as writer:
        writes = threading.Thread(target=lambda: (writer.write(data), writer.close()))
        writes.start()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(pipe))
        np.testing.assert_array_equal(read("-"), read_bytes(data))
        writes.join()


def test_sound_has_a_longest():
    """Told as soon as it is reached, and before it is resampled."""
    slow, read = WAV.replace(struct.pack("<I", RATE), struct.pack("<I", 1000), 1), []

    def up_to(longest):
        check = lambda seconds: (read.append(seconds), check_length(seconds, longest))  # noqa: E731
        return audio.decoded(io.BytesIO(slow), print, check)

    assert len(up_to(16)) == 16 * RATE
    with pytest.raises(InputError, match="more than 4 seconds of audio; cut it"):
        up_to(4)
    assert 4 < read[-1] < 8


def test_tags_may_be_in_any_encoding():
    tags = b"INFOINAM" + struct.pack("<I", 6) + "Café\0\0".encode("latin-1")
    data = WAV.index(b"data")
    tagged = WAV[:data] + b"LIST" + struct.pack("<I", len(tags)) + tags + WAV[data:]
    np.testing.assert_array_equal(read_bytes(tagged), read_bytes(WAV))


def test_damaged_packets_are_told():
    noise = Random(0).randbytes(600)
    notes: list[str] = []
    aac = made("adts", "aac", 3)
    samples = read_bytes(aac[:4000] + noise + aac[4600:], notes)
    assert 2.7 * RATE < len(samples) < 3.2 * RATE  # FFmpeg passes over what is not even a packet
    assert notes == ["standard input: damaged packets: 1; silence stands in for them"]


def tracks_file(container: str, codec: str, *tracks) -> bytes:
    """A file of sound tracks, each (language, whether it is the default, tone in Hz, (seconds where a second of it begins,
    ...))."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        streams = [output.add_stream(codec, rate=48_000, layout="mono") for _ in tracks]
        for stream, (language, is_default, _, _) in zip(streams, tracks, strict=True):
            stream.metadata["language"] = language
            stream.disposition = Disposition.default if is_default else Disposition(0)
        for stream, (*_, hertz, begins) in zip(streams, tracks, strict=True):
            for begin in begins:
                frame = av.AudioFrame.from_ndarray(
                    tone(1, 48_000, hertz).reshape(1, -1), "s16", "mono"
                )
                frame.sample_rate = 48_000
                frame.pts = 48_000 * begin
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    return file.getvalue()


def loud_seconds(samples: np.ndarray) -> list[int]:
    """The seconds of a sound in which there is some."""
    return [
        i for i in range(round(len(samples) / RATE)) if abs(samples[i * RATE :][:RATE]).mean() > 0.1
    ]


CODECS = dict(matroska="pcm_s16le", webm="libopus", mov="aac", mp4="alac", mpegts="mp2", nut="flac")


@pytest.mark.parametrize("begins", [(0, 1), (4,), (0, 6), (2, 3, 9), (60, 62)])
@pytest.mark.parametrize("container, codec", CODECS.items())
def test_sound_is_where_the_file_has_it_from_its_first_time_on(container, codec, begins):
    samples = read_bytes(tracks_file(container, codec, ("und", True, 440, begins)))
    expected = [begin - begins[0] for begin in begins]
    assert len(samples) == pytest.approx((expected[-1] + 1) * RATE, abs=RATE // 10)
    assert loud_seconds(samples) == expected


@pytest.mark.parametrize("begin", [0, 60])
@pytest.mark.parametrize("container, codec", CODECS.items())
def test_a_track_that_begins_after_another_one_stays_late(container, codec, begin):
    tracks = ("ger", False, 440, (begin + 4,)), ("eng", True, 880, (begin,))
    data = tracks_file(container, codec, *tracks)
    assert [loud_seconds(read_bytes(data, track=name)) for name in ("de", "en")] == [[4], [0]]


@pytest.mark.parametrize(
    "container, codec, mark, options",
    [
        ("webm", "libopus", rb"\x1fC\xb6u", dict(live="1", cluster_time_limit="1000")),
        (
            "mp4",
            "aac",
            rb"....moof",
            dict(movflags="empty_moov+default_base_moof+frag_every_frame"),
        ),
    ],
)
def test_a_recorders_later_pieces_behind_its_header_begin_at_once(container, codec, mark, options):
    data = made(container, codec, 6, 48_000, **options)
    pieces = [match.start() for match in re.finditer(mark, data, re.S)]
    later = data[: pieces[0]] + data[pieces[len(pieces) // 2] :]
    for recorded, seconds in ((data, 6), (later, 3)):
        assert loud_seconds(read_bytes(recorded, notes := [])) == list(range(seconds)) and not notes


TAG = b"ID3\3\0\0\0\2\0\0APIC" + Random(0).randbytes(2 * 128**2 - 4)
WHOLE = {
    "aac": sound_file("adts", "aac", np.concatenate([np.zeros([20 * RATE, 1], np.int16), tone(3)])),
    "aac in pieces": (TAG + made("adts", "aac")) * 2,
    "ogg": tracks_file("ogg", "libopus", ("und", True, 440, (60,))),
    "mp3s": (TAG + MP3) * 2,
    "mp3s with old tags": (MP3 + b"TAG" + bytes(125)) * 2,
    "mp3 and something": MP3 + bytes(999) + b"LYRICSBEGIN" * 99,
    "flacs": made("flac", "flac") * 2,
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_file_is_not_called_cut_off_or_damaged(name):
    read_bytes(WHOLE[name], notes := [])
    assert not notes


def test_a_broadcast_begins_at_its_first_time():
    """Its clock is any, and what looks like an hour's hole is the clock set anew."""
    data = tracks_file("mpegts", "mp2", ("und", True, 440, (50, 52, 3652)))
    assert loud_seconds(read_bytes(data)) == [0, 2, 3]


def test_damaged_packets_of_a_container_leave_its_times_alone():
    data = bytearray(tracks_file("matroska", "flac", ("und", True, 440, (0, 1, 2))))
    with av.open(io.BytesIO(data)) as file:
        packets = [(packet.pos, packet.size) for packet in file.demux() if packet.size]
    for pos, size in packets[8:16]:
        data[pos + 12 : pos + size] = bytes(size - 12)
    samples = read_bytes(bytes(data), notes := [])
    assert len(samples) == pytest.approx(3 * RATE, abs=RATE // 10) and "damaged" in notes[0]


def test_the_default_track_is_read_or_the_one_that_is_named(tmp_path):
    tracks = ("ger", False, 440, (0,)), ("eng", True, 880, (0,)), ("fre", False, 1320, (0,))
    path = tmp_path / "film.mkv"
    path.write_bytes(tracks_file("matroska", "pcm_s16le", *tracks))
    for track, hertz in ((None, 880), ("1", 440), ("de", 440), ("French", 1320), ("3", 1320)):
        spectrum = np.abs(np.fft.rfft(read(str(path), track=track)[:RATE]))
        assert spectrum.argmax() == hertz
    for track, message in (
        ("4", "no audio track 4; there are 1, 2, 3"),
        ("ja", "no language 'ja'"),
    ):
        with pytest.raises(InputError, match=message):
            read(str(path), track=track)


def test_what_comes_before_the_damage_is_kept():
    """FFmpeg gives up where no packet begins."""
    notes: list[str] = []
    whole = made("wv", "wavpack")
    samples = read_bytes(whole + Random(0).randbytes(999), notes)
    np.testing.assert_array_equal(samples, read_bytes(whole))
    assert notes == ["standard input: damaged; what follows the damage is left out"]


def test_a_track_that_begins_late_ends_nothing():
    """PyAV 18 raises IndexError where it flushes the tracks that it did not know at the start."""

    def packets():
        yield "packet"
        raise IndexError

    assert [*audio._readable(packets(), pytest.fail)] == ["packet"]


@pytest.mark.parametrize("channels", [1, 2])
def test_without_pyav_wav_is_read(monkeypatch, channels):
    sound = np.random.default_rng(0).integers(-(2**15), 2**15, [999, channels], np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as output:
        output.setparams((channels, 2, RATE, 0, "NONE", ""))
        output.writeframes(sound.astype("<i2").tobytes())
    expected = read_bytes(file.getvalue())
    monkeypatch.setattr(audio, "av", None)
    samples = read_bytes(file.getvalue())
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, expected, rtol=0, atol=1.01 / 32768)
    cut = read_bytes(file.getvalue()[:-1])
    np.testing.assert_array_equal(cut, samples[:-1])


@pytest.mark.parametrize("name", [name for name in FILES if name != "wav"])
def test_without_pyav_other_sound_is_refused(monkeypatch, name):
    monkeypatch.setattr(audio, "av", None)
    message = "only 16000 Hz wav of 16 bits can be read without PyAV: pip install -r requirements-apps.txt"
    assert mistake(FILES[name]) == f"standard input: {message}"


def damaged(random: Random, data: bytes) -> bytes:
    """Cut off, or with 1 to 99 bits flipped, often all of them in the header."""
    if random.random() < 0.3:
        return data[: random.randrange(len(data))]
    changed = bytearray(data)
    reach = random.choice([200, len(data)])
    for _ in range(random.choice([1, 2, 9, 99])):
        changed[random.randrange(reach)] ^= 1 << random.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize(
    "container, codec, tool",
    [
        ("wav", "pcm_s16le", "PyAV"),
        ("wav", "pcm_s16le", "wave"),
        ("mp3", "libmp3lame", "PyAV"),
        ("ipod", "aac", "PyAV"),
        ("flac", "flac", "PyAV"),
        ("ogg", "libopus", "PyAV"),
    ],
)
def test_damaged_files_give_sound_or_one_line(monkeypatch, capfd, container, codec, tool):
    whole = made(container, codec, 3)
    if tool == "wave":
        monkeypatch.setattr(audio, "av", None)
    refused = 0
    for seed in range(100):
        try:
            samples = read_bytes(damaged(Random(seed), whole))
        except InputError as error:
            assert str(error).startswith("standard input: ") and "\n" not in str(error)
            refused += 1
        else:
            assert samples.dtype == np.float32 and np.abs(samples).max() <= 1
    assert 0 < refused < 90
    assert (*capfd.readouterr(),) == ("", "")  # FFmpeg has much to say about them


@pytest.mark.parametrize(
    "container, codec",
    [("flac", "flac"), ("mp3", "libmp3lame"), ("aiff", "pcm_s16be")],
)
def test_a_sound_that_ends_before_its_file_says_is_told(container, codec):
    notes = []
    noise = np.random.default_rng(0).integers(-9000, 9000, [8 * RATE, 1]).astype(np.int16)
    data = sound_file(container, codec, noise, RATE)
    length = len(read_bytes(data[: len(data) // 2], notes)) / RATE
    assert f"ends at {length:.1f} s, though it says 8.0 s" in notes[-1]
