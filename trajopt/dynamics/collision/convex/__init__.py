"""Any two convex shapes, meshes included: direction of separation (GJK), of least penetration (expanding polytope), the patch."""
