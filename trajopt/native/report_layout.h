// Where a step's report holds what (trajopt/dynamics/report.py reads it, by the same names).
#pragma once
#include "topology.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Layout of a report: its head, which are these; of a whole one then the reported impulses, then REPORT_CONTACT numbers for every
// reported contact.
enum ReportHead {
  RESIDUAL, ITERATIONS, FALLBACKS, STATUS, IS_DEGENERATE, IS_SELECTED, DROPPED, OVERFLOW_ROWS, ACTIVE_CONTACTS, ACTIVE_ROWS, PASSES,
  PUSH_OUT_DROPPED,
  ONE_SIDED,  // the columns of A that are one-sided, as bits of these numbers, which a float holds
  REPORT_HEAD = 25
};
constexpr int ONE_SIDED_BITS = 24, ONE_SIDED_WORDS = REPORT_HEAD - ONE_SIDED;
constexpr int REPORT_CONTACT = 13;  // distance, point, normal, mode, tied, friction, node1, node2, pair

inline int report_size(const Topology& t, bool whole) { return REPORT_HEAD + (whole ? t.reported() + REPORT_CONTACT * t.report_contacts : 0); }

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
