"""Attention mechanisms: one file per core on (B,H,N,d); `multihead` makes a core a layer, `precondition` wraps one."""
