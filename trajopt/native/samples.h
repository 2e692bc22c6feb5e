// Samples of a batch in the arguments of a handler: their leading axes are each 1 or that of the batch.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vector.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Array = ffi::Buffer<ffi::F64>;
using Result = ffi::ResultBuffer<ffi::F64>;

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Where sample number i of a batch begins in an argument whose leading axes are each 1 or that of the batch.
class Samples {
 public:
  Samples(const double* data, ffi::Span<const int64_t> dimensions, size_t own_rank) : data_(data) {
    size_ = 1;
    for (size_t k = dimensions.size() - own_rank; k < dimensions.size(); ++k) size_ *= dimensions[k];
    leading_ = dimensions.first(dimensions.size() - own_rank);
    for (int64_t axis : leading_) count_ *= axis;
  }
  const double* at(size_t i, const int64_t* batch, size_t axes) const {
    if (count_ == 1) return data_;
    int64_t index = 0, stride = 1;
    for (size_t k = axes; k-- > 0;) {
      const int64_t here = static_cast<int64_t>(i) % batch[k];
      i /= batch[k];
      const size_t from = leading_.size() + k - axes;
      if (k + leading_.size() < axes) continue;
      if (leading_[from] > 1) index += here * stride;
      stride *= leading_[from];
    }
    return data_ + index * size_;
  }
  int64_t size() const { return size_; }

 private:
  const double* data_;
  ffi::Span<const int64_t> leading_;
  int64_t size_, count_ = 1;
};
inline Samples samples(const Array& a, size_t own_rank) { return {a.typed_data(), a.dimensions(), own_rank}; }

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
