"""The files that Dormouse reads as they are: no Python but this, which makes an editable install find them."""
