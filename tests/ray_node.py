"""A Ray of one process for tests, gone without a trace afterwards."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def _start(ray: Any, attempts: int = 10) -> None:
    """Ray gives its own processes thirty seconds to start, which a busy machine may not have."""
    for attempt in range(1, attempts + 1):
        try:
            ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
            return
        except Exception as error:
            if attempt == attempts or "timed out during startup" not in str(error):
                raise
            ray.shutdown()


@contextmanager
def ray_node() -> Iterator[None]:
    """Ray gives its processes a second to end and does not wait: on a busy machine they outlive it,
    and Python warns of each. Files that Ray leaves open are collected here, not after the tests."""
    import ray

    _start(ray)
    node = ray._private.worker._global_node
    processes = [info.process for infos in node.all_processes.values() for info in infos]
    try:
        yield
    finally:
        ray.shutdown()
        for process in processes:
            process.wait(60)
        del node
        gc.collect()
