"""The group engine: one model on one CUDA card, groups of completions of one prompt."""
