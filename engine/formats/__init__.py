"""The files that Dormouse reads and writes, and what can be wrong with them."""
