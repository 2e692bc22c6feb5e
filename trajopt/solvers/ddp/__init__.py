"""iLQR and DDP: the quadratic model along a motion, one iteration as one program, and the solvers. Other methods that minimise
over a motion (Gauss-Newton over a horizon, the moving horizon) take the iteration from here."""
