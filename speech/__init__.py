"""Speech to text with Whisper: sound, features, rules of decoding, transcripts and their files."""

import blas  # noqa: F401 (before mlx: see there)
