"""Processes of one test meet at a store of their parent, as under torchrun: no port is guessed."""

import os

from torch.distributed import TCPStore


def meeting_place() -> tuple[TCPStore, dict[str, str]]:
    """A store that listens as long as it is kept, and what each rank's environment needs of it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return store, {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def as_rank(rank: int, size: int, place: dict[str, str]) -> None:
    """Make this process one of them."""
    ours = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in ours.items()} | place)
