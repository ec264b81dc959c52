"""Parts of the window: each connects some state with some widgets."""
