"""Decoding by the target: alone, in batches, or speculatively with a drafter; and the acceptance length of the latter."""
