"""A trained drafter in, folders that other programs load out; and back again."""
