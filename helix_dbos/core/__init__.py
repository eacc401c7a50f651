"""The pure heart: it decides, and does nothing else.

Modules here import only the standard library and pydantic. They see no clock, no source of
randomness, no connection, no DBOS and no model. Everything outside loads rows, asks these
functions, commits what they decided, and only then acts.
"""
