// The memory of the contact solve: one block for all vectors and matrices of its methods.
#pragma once
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "path.h"
#include "selection.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// All memory of the solve of problems up to some size. One a thread; nothing else is kept between calls.
class ContactWorkspace {
 public:
  ContactWorkspace() = default;
  ContactWorkspace(const ContactWorkspace&) = delete;
  ContactWorkspace& operator=(const ContactWorkspace&) = delete;
  ~ContactWorkspace() { std::free(memory_); }

  // Room for m rows; allocates only when m is larger than ever before.
  void reserve(int m) {
    if (m < rows_ && memory_) return;
    std::free(memory_);
    rows_ = padded(m + 1);  // `Path` has one unknown more
    const size_t doubles = (size_t)(VECTORS + WIDE * PAD) * rows_ + (size_t)MATRICES * rows_ * rows_;
    const size_t bytes = (doubles * sizeof(double) + (size_t)INDICES * rows_ * sizeof(int) + 127) / 64 * 64;
    memory_ = static_cast<double*>(std::aligned_alloc(64, bytes));
    if (!memory_) throw std::bad_alloc();
    std::memset(memory_, 0, bytes);
    double* next = memory_;
    auto vector = [&](int count = 1) {
      double* at = next;
      next += (size_t)count * rows_;
      return at;
    };
    Elimination& e = selection.elimination;
    Curvature& c = selection.curvature;
    rho = vector();
    for (Point* p : {&current, &best, &spare, &newton.trial, &in_modes.at}) p->x = vector(), p->nu = vector(), p->F = vector();
    for (double** v :
         {&newton.step, &swept, &start, &frictionless, &pull, &factor.inverse, &factor.S_inverse, &factor.small, &factor.other, &factor.right, &factor.reduced, &factor.answer,
          &e.inverse, &e.sizes, &e.scratch, &c.along, &c.inverse, &selection.right, &selection.found, &selection.candidate,
          &selection.one, &selection.two, &selection.three, &in_modes.direction, &in_modes.speed, &path.x, &path.direction, &path.speed,
          &path.inverse, &path.shares, &path.border, &path.scale, &path.right, &path.tangent, &path.step, &path.before, &path.after,
          &path.move, &path.rate})
      *v = vector();
    c.H = vector(PAD), in_modes.basis = vector(3), in_modes.row = vector(2), factor.slope = reinterpret_cast<ConeSlope*>(vector(2));
    for (double** matrix : {&factor.K, &factor.S, &e.U, &e.L, &selection.Ghh, &c.N, &c.Z, &c.pushed, &c.T, &c.S, &c.by_friction, &spread, &path.K}) *matrix = vector(rows_);
    int* index = reinterpret_cast<int*>(next);
    for (int** v :
         {&factor.held, &factor.row, &factor.mode, &newton.mode, &mode, &selecting_mode, &selection.held, &e.row, &e.col, &c.row, &in_modes.mode,
          &in_modes.place, &in_modes.held, &path.row})
      *v = index, index += rows_;
    if (reinterpret_cast<char*>(index) > reinterpret_cast<char*>(memory_) + bytes) throw std::logic_error("more arrays than counted");
    factor.valid = false;
  }

  double *rho = nullptr, *swept, *start, *frictionless, *pull, *spread;
  Point current, best, spare;
  NewtonScratch newton;
  Factor factor;
  SelectionScratch selection;
  InModes in_modes;
  PathScratch path;
  int *mode, *selecting_mode;  // of the solution, and of the equations that select it among many

 private:
  static constexpr int VECTORS = 66, WIDE = 1, MATRICES = 13, INDICES = 14;
  double* memory_ = nullptr;
  int rows_ = 0;
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
