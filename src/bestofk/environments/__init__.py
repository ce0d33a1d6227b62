"""Environments: trajectories of several turns, with tools.

An environment is a class; each trajectory has an instance of its own.

    class Repair:
        def reset(self, **row) -> str | None: ...   # the row; adds text to the prompt
        def run_tests(self, program: str) -> str: ...  # public methods are tools
        def get_reward(self) -> float | None: ...   # once, at the end

It runs as it is in TRL's `environment_factory`. An instance that can be called answers messages
without a tool call: `__call__(self, text) -> str | None`, where None ends the trajectory.
"""
