"""Speech to text with Whisper: sound, features, rules of decoding, transcripts and their files."""

import own_modules  # noqa: F401 (before all others: see there)

# isort: split
from common import blas  # noqa: F401 (before mlx: see there)
