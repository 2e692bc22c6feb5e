"""Algorithms that solve the contact problem: the cascade of attempts, each method in its own file, and the selection among
many solutions."""
