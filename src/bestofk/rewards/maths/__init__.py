"""Mathematics: find the answer in a completion, compare it exactly with the expected one."""
