"""Rigid-body algorithms in the world frame: spatial algebra, configurations on their manifold, kinematics, inverse and
forward dynamics, the mass matrix, closed-form derivatives, energies, and other conventions for the same quantities."""
