"""The drivers: each re-reads the store and advances it, and may be killed at any point.

Start reading at `turn.py`.
"""
