"""Chaos: a live server under a seeded mix of everything that clients do; scripts/chaos runs it."""
