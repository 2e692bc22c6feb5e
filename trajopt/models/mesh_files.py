"""The mesh files that a URDF or SDF names, as hulls: each is read once; missing or unreadable ones cost their geometry."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np
from jaxtyping import Float

from trajopt.errors import ModelError
from trajopt.models.builder import ModelBuilder
from trajopt.models.meshes import convex_hull, load_triangles, load_vertices, resolve_uri
from trajopt.models.messages import listed


class MeshFiles:
    """Where the meshes of a file are looked for: beside `path`, and in `package_dirs`."""

    def __init__(self, builder: ModelBuilder, path: Path | None, package_dirs: Sequence[str | Path]):
        self.builder, self.path, self.package_dirs = builder, path, package_dirs
        self._missing: list[str] = []
        self._hulls: dict[tuple, np.ndarray | None] = {}

    def hull(self, uri: str, scale: Float[np.ndarray, "3"], element: Element) -> Float[np.ndarray, "k 3"] | None:
        """Vertices (m) of the hull of the mesh that an element names, or None, with a warning."""
        path = getattr(element, "file", self.path)  # of an element that another file includes: that file
        file = resolve_uri(uri, path.parent if path else None, self.package_dirs)
        line = getattr(element, "sourceline", "?")
        if file is None:
            self._missing.append(f"'{uri}' (line {line})")
            return None
        key = (str(file), tuple(scale))
        if key not in self._hulls:
            self._hulls[key] = None
            try:
                vertices, triangles = load_vertices(file) * scale, load_triangles(file)
                triangles = None if triangles is None else triangles * scale
                self._hulls[key] = convex_hull(vertices, str(file), self.builder.warn, triangles)
            except ModelError as error:
                self.builder.warn(f"line {line}: {error}; its geometry is dropped")
        return self._hulls[key]

    def warn_missing(self) -> None:
        """One warning for all meshes that were not found."""
        if self._missing:
            self.builder.warn(f"mesh files not found, their geometry is dropped: {listed(self._missing, 4)}")
