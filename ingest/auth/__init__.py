"""Who calls, and what the caller may do: tokens, grants, shares, sessions, access keys, TLS."""
