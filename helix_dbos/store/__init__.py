"""The truth: rows on Postgres, one aggregate per module.

Functions here take an open transaction and never begin or commit one. Every decision about a
session is made under its row lock, taken in a statement of its own: *lock, then look, then
write*. Lock order: sessions, calls by dispatch id, counters, engine rows.
"""
