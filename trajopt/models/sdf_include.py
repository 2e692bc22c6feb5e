"""<include> elements of SDF: the files they name, put in their place.

`<uri>` is looked for as a file or a model's folder: beside the file that includes it, in `package_dirs`, and where
`package://` names are looked for (GZ_SIM_RESOURCE_PATH among others). A folder's file is the one that its model.config
names, else model.sdf. Elements remember the file they come from, so that meshes are found beside it and errors name it.
Where Gazebo's own models of the sun, a light, and of the ground plane are not found, the one is left out and the other
is a plane.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

from trajopt.models.limits import ELEMENTS, INCLUDES, LEVELS, is_regular
from trajopt.models.meshes import places, resolve_uri
from trajopt.models.sdf_frames import Scope, compose, invert, is_true, own_pose
from trajopt.models.xml import fail, parse_xml, read_file

# Models that worlds made by Gazebo include from its server: a light, and a plane.
_SUN = "model://sun"
_GROUND = (
    "<sdf><model name='ground_plane'><static>true</static><link name='link'><inertial/><collision name='collision'><geometry>"
    "<plane/></geometry></collision></link></model></sdf>"
)


@dataclasses.dataclass
class _Read:
    """What has been included so far."""

    includes: int = 0
    elements: int = 0


def expand_includes(
    holder: Element, path: Path | None, package_dirs: Sequence[str], depth: int = 0, read: _Read | None = None
) -> None:
    """Replace the <include> elements of a world or model, and of the models in it. `ModelError` for files that are not
    found, and for more models, or deeper in each other, than `trajopt.models.limits` lets pass."""
    read = _Read() if read is None else read
    if depth > LEVELS:
        fail(holder, f"models hold or include each other more than {LEVELS} levels deep, probably in a loop")
    for include in holder.findall("include"):
        read.includes += 1
        if read.includes > INCLUDES:
            fail(include, f"more than {INCLUDES} models are included, those in others counted; leave some out")
        uri = (include.findtext("uri") or "").strip()
        file = _find(uri, path, package_dirs)
        if file is None and uri == _SUN:
            holder.remove(include)
            continue
        if file is None and uri != "model://ground_plane":
            remedy = "download it and give its path" if uri.startswith("http") else "name the folder above it in package_dirs"
            fail(include, f"the included model '{uri}' is not found; {remedy}")
        root = parse_xml(_GROUND, uri) if file is None else parse_xml(read_file(file), str(file))
        model = root.find("model")
        if model is None:
            fail(include, f"'{file}' has no <model>; its root element is <{root.tag}>")
        read.elements += sum(1 for _ in model.iter())
        if read.elements > ELEMENTS:
            fail(include, f"the included models have more than {ELEMENTS:,} elements; leave some out")
        _override(model, include)
        for element in model.iter():
            element.file = file  # type: ignore[attr-defined]
        expand_includes(model, file, package_dirs, depth + 1, read)
        position = list(holder).index(include)
        holder.remove(include)
        if include.get("merge", "").strip().lower() in ("1", "true"):
            if holder.tag != "model":
                fail(include, "merge is supported for models included in models only")
            _merge(holder, model, position)
        else:
            holder.insert(position, model)
    for model in holder.findall("model"):
        expand_includes(model, getattr(model, "file", path), package_dirs, depth + 1, read)


def _find(uri: str, path: Path | None, package_dirs: Sequence[str]) -> Path | None:
    if not uri:
        return None
    folder = path.parent if path else None
    for name in (uri, f"{uri}/model.config", f"{uri}/model.sdf"):
        file = resolve_uri(name, folder, package_dirs)
        if file is None and "://" not in name:
            file = next((place / name for place in places(None, package_dirs) if is_regular(place / name)), None)
        if file is None or file.name != "model.config":
            if file is not None:
                return file
            continue
        named = (parse_xml(read_file(file), str(file)).findtext("sdf") or "").strip()
        if named and is_regular(file.parent / named):
            return file.parent / named
    return None


def _override(model: Element, include: Element) -> None:
    """What an <include> says of the model that it includes."""
    model.set("name", (include.findtext("name") or model.get("name") or "").strip())
    frame = (include.findtext("placement_frame") or "").strip()
    if frame:
        model.set("placement_frame", frame)
    if include.find("pose") is None and frame:
        SubElement(include, "pose")
    for tag in ("pose", "static"):
        override = include.find(tag)
        if override is not None:
            for old in model.findall(tag):
                model.remove(old)
            model.append(override)


def _merge(holder: Element, model: Element, position: int) -> None:
    """Put the parts of a model into `holder`, placed by a frame that stands for the model's own."""
    name = str(model.get("name"))
    frame = Element("frame", {"name": f"_merged__{name}__model_frame__"})
    inner = Scope(model)
    own = model.find("pose")
    pose = SubElement(frame, "pose", {"rotation_format": "matrix"})
    if own is not None and (own.get("relative_to") or own.get("frame")):
        pose.set("relative_to", str(own.get("relative_to") or own.get("frame")))
    placed = own_pose(model)
    if model.get("placement_frame"):
        placed = compose(placed, invert(inner.resolve(str(model.get("placement_frame")))))
    pose.text = " ".join(repr(float(x)) for x in (*placed[0].ravel(), *placed[1]))
    parts = [frame, *(part for part in model if part.tag in ("link", "joint", "frame", "model"))]
    for part in parts[1:]:
        _refer_to(part, str(frame.get("name")))
    for k, part in enumerate(parts):
        holder.insert(position + k, part)
    if is_true(model, "self_collide") and holder.find("self_collide") is None:
        SubElement(holder, "self_collide").text = "true"


def _refer_to(part: Element, frame: str) -> None:
    """Write `frame` wherever a part of a merged model refers to the model's own frame."""
    own = part.find("pose")
    if own is None and part.tag != "joint":
        own = SubElement(part, "pose")
    if (
        part.tag != "joint"
        and own is not None
        and not (own.get("relative_to") or own.get("frame") or part.get("attached_to"))
    ):
        own.set("relative_to", frame)
    for element in part.iter():
        for attribute in ("relative_to", "frame", "attached_to", "expressed_in"):
            if element.get(attribute) == "__model__":
                element.set(attribute, frame)
        if element.tag in ("parent", "child") and (element.text or "").strip() == "__model__":
            element.text = frame
        if element.tag == "use_parent_model_frame" and (element.text or "").strip().lower() in ("1", "true"):
            fail(element, "use_parent_model_frame in a merged model is not supported; use expressed_in")
