"""Replays of recorded values from outside: `python -m tests.replay NAME DIR`."""
