"""On top of the library: what applications do with it. Documents, speech, distillation and benchmarks stand beside each
other; the command line and the server stand on them."""

from speculative import blas as blas  # (before mlx: see there)
