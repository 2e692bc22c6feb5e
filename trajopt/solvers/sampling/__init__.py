"""Sampling solvers: the space they search, the program that rolls out a generation, what they share (`SamplingSolver`), and one
file for each way of moving the distribution."""
