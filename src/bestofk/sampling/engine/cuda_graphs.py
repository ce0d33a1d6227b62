"""CUDA graphs: work recorded once and launched as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class GraphRecorder:
    """Records work, all in one pool of memory, where that is possible and wanted."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.pool: Any = None

    def record(self, work: Callable[[], None]) -> Any:
        """A graph of the work, to be replayed. What it reads must stay where it is."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            work()
        self.pool = self.pool or graph.pool()
        return graph

    @staticmethod
    def warmed_up(work: Callable[[], None]) -> None:
        """Run the work twice beside the usual stream, so that nothing is built while recording."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
