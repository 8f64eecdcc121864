"""Several processes that run one model together."""
