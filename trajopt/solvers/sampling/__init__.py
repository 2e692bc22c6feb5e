"""Sampling solvers: the space they search, the program that rolls out a generation, what they share (`SamplingSolver`), and one
file for each way of moving the distribution."""

from trajopt.solvers.sampling.cem import CEM
from trajopt.solvers.sampling.cmaes import CMAES
from trajopt.solvers.sampling.mppi import MPPI
from trajopt.solvers.sampling.predictive import PredictiveSampling
from trajopt.solvers.sampling.search import SamplingSolver
from trajopt.solvers.sampling.stochastic_search import StochasticSearch

__all__ = ["CEM", "CMAES", "MPPI", "PredictiveSampling", "SamplingSolver", "StochasticSearch"]
