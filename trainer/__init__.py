"""The process that trains: a target and conversations in, a drafter and its record out."""
