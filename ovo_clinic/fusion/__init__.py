"""Fusion heads: one file per routing; `tokens` prepares what they all share, `mechanism` builds what attends."""
