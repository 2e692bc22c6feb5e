"""Algorithms that solve the contact problem: the ladder of stages, each method in its own file, and the selection among many
solutions."""
