"""What simulators write into URDF files beside the format: <gazebo> elements."""

from __future__ import annotations

from xml.etree.ElementTree import Element

import numpy as np

from trajopt.models.builder import ModelBuilder
from trajopt.models.xml import fail, where


def gazebo_frictions(root: Element, source: str) -> dict[str, float]:
    """Friction by link, from `<gazebo reference="LINK"><mu1>`."""
    found = {}
    for element in root.findall("gazebo"):
        mu, link = element.find("mu1"), element.get("reference")
        if link and mu is not None:
            try:
                value = float(mu.text or mu.get("value") or "")
            except ValueError:
                fail(mu, source, f"mu1 is '{mu.text}'; expected a number")
            if not 0 <= value < np.inf:
                fail(mu, source, f"mu1 is {value}; expected a finite number of at least 0")
            found[link] = value
    return found


def warn_of_extensions(root: Element, builder: ModelBuilder) -> None:
    """What simulators would add to the physics and is left out here."""
    for element in root.findall("gazebo"):
        link = element.get("reference")
        if (element.findtext("turnGravityOff") or "").strip().lower() in ("1", "true"):
            builder.warn(f"{where(element, builder.source)} of link '{link}': <turnGravityOff> is left out; gravity acts on it")
        first, second = ((element.findtext(tag) or "").strip() for tag in ("mu1", "mu2"))
        if first and second and first != second:
            builder.warn(
                f"{where(element, builder.source)} of link '{link}': friction that differs with the direction (mu1 {first}, "
                f"mu2 {second}) is not supported; mu1 is taken"
            )
