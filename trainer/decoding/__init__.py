"""Token ids of a prompt in, the target's answer out: alone, in batches, or drafted block by block."""
