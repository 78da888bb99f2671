"""Decisions on group size and refresh interval, as `init`/`next` over measured facts. No torch here."""
