"""Settings that hold for every test."""

from hypothesis import settings

# No test is timed, examples are the same on every machine, and a busy machine changes nothing.
settings.register_profile("bestofk", deadline=None, derandomize=True)
settings.load_profile("bestofk")
