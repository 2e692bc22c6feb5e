"""Where shapes meet: a broad phase that bounds distances, a narrow phase that finds contact points and normals with their
derivatives, and uneven ground."""
