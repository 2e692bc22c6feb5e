"""What simulators write into URDF files beside the format: <gazebo> elements, and <contact> of links."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from trajopt.models.builder import ModelBuilder
from trajopt.models.xml import fail, number, parse_numbers


def gazebo_frictions(root: Element) -> dict[str, float]:
    """Friction by link, from `<gazebo reference="LINK"><mu1>`."""
    frictions = {}
    for element in root.findall("gazebo"):
        mu, link = element.find("mu1"), element.get("reference")
        if link and mu is not None:
            frictions[link] = float(parse_numbers(mu.text or mu.get("value") or "", 1, mu, "mu1")[0])
            if frictions[link] < 0:
                fail(mu, f"mu1 is {frictions[link]}; expected 0 or more")
    return frictions


def read_contact(link: Element, friction: float, builder: ModelBuilder) -> tuple[float, float]:
    """Friction and restitution in the <contact> of a link, `friction` and 0 where it gives none; a warning for the rest."""
    restitution = 0.0
    for element in (element for contact in link.findall("contact") for element in contact):
        if element.tag == "lateral_friction":
            friction = number(element, "value")
            if friction < 0:
                fail(element, f"attribute 'value' is {friction}; expected 0 or more")
        elif element.tag == "restitution":
            restitution = number(element, "value")
            if not 0 <= restitution <= 1:
                fail(element, f"attribute 'value' is {restitution}; expected 0 to 1")
        elif element.tag not in ("rolling_friction", "spinning_friction") or number(element, "value", 0.0):
            builder.warn("it is not supported; it is left out", at=element)
    return friction, restitution


def warn_of_extensions(root: Element, builder: ModelBuilder) -> None:
    """What simulators would add to the physics and is left out here."""
    for element in root.findall("gazebo"):
        link = f"link '{element.get('reference')}'"
        if (element.findtext("turnGravityOff") or "").strip().lower() in ("1", "true"):
            builder.warn(f"<turnGravityOff> of {link} is left out; gravity acts on it", at=element)
        if element.find("collision") is not None:
            builder.warn(f"<collision> of {link} is not supported; it is left out", at=element)
        first, second = ((element.findtext(tag) or "").strip() for tag in ("mu1", "mu2"))
        if first and second and first != second:
            directions = f"friction of {link} that differs with the direction (mu1 {first}, mu2 {second})"
            builder.warn(f"{directions} is not supported; mu1 is taken", at=element)
