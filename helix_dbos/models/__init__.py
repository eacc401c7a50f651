"""Models: the port, and its adapter over pydantic-ai's `direct` module."""
