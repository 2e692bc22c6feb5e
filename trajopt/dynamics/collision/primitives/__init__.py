"""Pairs of simple shapes with contacts in closed form: everything against a plane; spheres, capsules, cylinders and boxes."""
