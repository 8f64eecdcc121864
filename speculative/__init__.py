"""The library: the speculative step, its drafters and the models; below them, checkpoints' files, and what stands between
text and tokens. It imports no application and no command. Its first import readies the process: names, then the BLAS."""

from speculative.common import own_modules as own_modules

# isort: split
from speculative.common import blas as blas
