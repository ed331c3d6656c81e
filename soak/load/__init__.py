"""The load: one child process a card, and the parent that watches them."""
