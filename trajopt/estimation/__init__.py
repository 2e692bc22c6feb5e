"""Estimation from recordings: channels with time stamps, the sensors that they come from, and what they say about a model."""

from trajopt.estimation.identification import Identification, Prediction
from trajopt.estimation.identify import identify
from trajopt.estimation.loss import RobustLoss
from trajopt.estimation.moments import Moment
from trajopt.estimation.moving_horizon import MovingHorizon
from trajopt.estimation.parameter import Parameter
from trajopt.estimation.readers import from_columns, read
from trajopt.estimation.recording import Channel, Recording
from trajopt.estimation.report import write_report
from trajopt.estimation.sensors import IMU, ContactSwitch, Encoder, ForceTorque, Input, Pose, Sensor, Velocity
from trajopt.estimation.smoothing import ProcessNoise, Smoothed, smooth
from trajopt.estimation.tosses import read_tosses
from trajopt.estimation.window import Estimate

__all__ = [
    "IMU",
    "Channel",
    "ContactSwitch",
    "Encoder",
    "Estimate",
    "ForceTorque",
    "Identification",
    "Input",
    "Moment",
    "MovingHorizon",
    "Parameter",
    "Pose",
    "Prediction",
    "ProcessNoise",
    "Recording",
    "RobustLoss",
    "Sensor",
    "Smoothed",
    "Velocity",
    "from_columns",
    "identify",
    "read",
    "read_tosses",
    "smooth",
    "write_report",
]
