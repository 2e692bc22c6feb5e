"""Estimation from recordings: channels with time stamps, the sensors that they come from, and what they say about a model."""

from trajopt.estimation.readers import from_columns, read
from trajopt.estimation.recording import Channel, Recording
from trajopt.estimation.sensors import IMU, ContactSwitch, Encoder, ForceTorque, Input, Moment, Pose, Sensor, Velocity
from trajopt.estimation.tosses import read_tosses

__all__ = [
    "IMU",
    "Channel",
    "ContactSwitch",
    "Encoder",
    "ForceTorque",
    "Input",
    "Moment",
    "Pose",
    "Recording",
    "Sensor",
    "Velocity",
    "from_columns",
    "read",
    "read_tosses",
]
