"""bestofk's objectives inside other trainers: one module per host, imported only when asked for.

An adapter translates the host's tensors to groups, calls `bestofk.objectives` and translates back.
It holds no mathematics.
"""
