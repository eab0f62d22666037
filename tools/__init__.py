"""Programs of the build: what they write is committed, and tests hold it to its sources."""
