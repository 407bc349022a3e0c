"""The study report: one self-contained HTML file of aggregates."""
