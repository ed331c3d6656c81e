"""Readings of a card, taken in a child that can be killed."""
