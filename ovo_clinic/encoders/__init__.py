"""Encoders: one file each; a modality's input -> Tokens of width D."""
