"""Problems that solvers solve in every iteration: linear-quadratic control (`riccati`), quadratic programs over a box (`box_qp`),
the augmented Lagrangian, line searches; and what iterations share: held bounds, batches of steps, compiled loops (`iterate`)."""
