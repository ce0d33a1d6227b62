"""Deploy best of k: draw up to k samples and keep one, for files, from Python and as a server."""

from bestofk.deploy.solving import best_of

__all__ = ["best_of"]
