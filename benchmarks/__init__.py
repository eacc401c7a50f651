"""Opt-in benchmarks: `make bench`. Ratios from one run on one Postgres; never part of the tests."""
