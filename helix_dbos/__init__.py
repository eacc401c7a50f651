"""helix-dbos: LLM agent turns as DBOS workflows that survive SIGKILL with the truth about every call."""
