"""Arrays of the host to a device, without waiting for what the device is doing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def there(array: np.ndarray, device: torch.device | str) -> Tensor:
    """A tensor of these values; on CUDA copied from pinned memory while the GPU works on."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
