"""The names OpenRLHF imports; see `flash_attn`."""

from flash_attn import absent

index_first_axis = absent("index_first_axis")
pad_input = absent("pad_input")
rearrange = absent("rearrange")
unpad_input = absent("unpad_input")
