"""The name OpenRLHF imports; see `flash_attn`."""

from flash_attn import absent

all_gather = absent("all_gather")
