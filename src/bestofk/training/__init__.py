"""What the loop in `bestofk.train` is made of: checks, rollouts, processes, validation, view."""
