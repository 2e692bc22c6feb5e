"""What simulators write into URDF files beside the format: <gazebo> elements, and <contact> of links."""

from __future__ import annotations

from xml.etree.ElementTree import Element

import numpy as np

from trajopt.models.builder import ModelBuilder
from trajopt.models.xml import fail, number, where


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


def read_contact(link: Element, friction: float, builder: ModelBuilder) -> tuple[float, float]:
    """Friction and restitution in the <contact> of a link, `friction` and 0 where it gives none; a warning for the rest."""
    restitution, source = 0.0, builder.source
    for contact in link.findall("contact"):
        for element in contact:
            if element.tag == "lateral_friction":
                friction = number(element, "value", source)
                if friction < 0:
                    fail(element, source, f"attribute 'value' is {friction}; expected 0 or more")
            elif element.tag == "restitution":
                restitution = number(element, "value", source)
                if not 0 <= restitution <= 1:
                    fail(element, source, f"attribute 'value' is {restitution}; expected 0 to 1")
            elif not _says_nothing(element):
                builder.warn(
                    f"{where(element, source)} of link '{link.get('name')}': it is not supported; it is left out"
                )
    return friction, restitution


def _says_nothing(element: Element) -> bool:
    """Whether an element of <contact> is a rolling or spinning friction of 0."""
    try:
        return element.tag in ("rolling_friction", "spinning_friction") and float(element.get("value", "")) == 0
    except ValueError:
        return False


def warn_of_extensions(root: Element, builder: ModelBuilder) -> None:
    """What simulators would add to the physics and is left out here."""
    for element in root.findall("gazebo"):
        link = element.get("reference")
        if (element.findtext("turnGravityOff") or "").strip().lower() in ("1", "true"):
            builder.warn(
                f"{where(element, builder.source)} of link '{link}': <turnGravityOff> is left out; gravity acts on it"
            )
        if element.find("collision") is not None:
            builder.warn(
                f"{where(element, builder.source)} of link '{link}': its <collision> is not supported; it is left out"
            )
        first, second = ((element.findtext(tag) or "").strip() for tag in ("mu1", "mu2"))
        if first and second and first != second:
            builder.warn(
                f"{where(element, builder.source)} of link '{link}': friction that differs with the direction (mu1 {first}, "
                f"mu2 {second}) is not supported; mu1 is taken"
            )
