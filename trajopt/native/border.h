// Arrays as they come from XLA and go back: of doubles or of floats. The core computes in double; floats are widened on the way in
// and rounded on the way out.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "vector.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace trajopt {
inline namespace TRAJOPT_ISA {

// An argument or a result of a handler.
class Array {
 public:
  explicit Array(const ffi::AnyBuffer& buffer) : buffer_(buffer) {}
  static bool allowed(const ffi::AnyBuffer& b) { return b.element_type() == ffi::DataType::F64 || b.element_type() == ffi::DataType::F32; }
  bool single() const { return buffer_.element_type() == ffi::DataType::F32; }
  void* data() const { return buffer_.untyped_data(); }
  ffi::AnyBuffer::Dimensions dimensions() const { return buffer_.dimensions(); }
  int64_t element_count() const { return static_cast<int64_t>(buffer_.element_count()); }

 private:
  ffi::AnyBuffer buffer_;
};
using Result = ffi::Result<Array>;

// The doubles of one sample of a batch, or of all of it: those of the arrays themselves, or room beside them where they hold floats.
// One for each thread; its room is kept from call to call.
class Border {
 public:
  // Forgets what was handed over before.
  void begin() { used_ = results_ = 0; }

  const double* in(const void* data, bool single, int64_t offset, int64_t count) {
    if (!single) return static_cast<const double*>(data) + offset;
    const float* from = static_cast<const float*>(data) + offset;
    double* widened = room(count);
    std::copy_n(from, count, widened);
    return widened;
  }

  double* out(Result& to, int64_t offset, int64_t count) {
    if (!to->single()) return static_cast<double*>(to->data()) + offset;
    if (results_ == pending_.size()) pending_.emplace_back();
    double* values = room(count);
    pending_[results_++] = {values, static_cast<float*>(to->data()) + offset, count};
    return values;
  }

  // Rounds a result that is read again as the array will hold it.
  static void settle(Result& to, double* values, int64_t count) {
    if (to->single())
      for (int64_t k = 0; k < count; ++k) values[k] = static_cast<float>(values[k]);
  }

  // Writes the results that were rounded.
  void finish() const {
    for (size_t r = 0; r < results_; ++r)
      for (int64_t k = 0; k < pending_[r].count; ++k) pending_[r].to[k] = static_cast<float>(pending_[r].values[k]);
  }

 private:
  struct Pending { const double* values; float* to; int64_t count; };

  double* room(int64_t count) {
    if (used_ == rooms_.size()) rooms_.emplace_back();
    std::vector<double>& here = rooms_[used_++];
    if (here.size() < static_cast<size_t>(count)) here.resize(count);
    return here.data();
  }
  std::vector<std::vector<double>> rooms_;
  std::vector<Pending> pending_;
  size_t used_ = 0, results_ = 0;
};

// The leading axes of a batch, and how many samples it has.
struct Batch {
  Batch(const Array& result, size_t axes) : dimensions(result.dimensions().first(axes)) {
    for (int64_t axis : dimensions) count *= axis;
  }
  ffi::Span<const int64_t> dimensions;
  int64_t count = 1;
};

// The samples of a batch in an argument of a handler, whose leading axes are each 1 or that of the batch.
class Samples {
 public:
  Samples(const Array& a, size_t axes)
      : data_(a.data()), single_(a.single()), leading_(a.dimensions().first(axes)), own_(a.dimensions().last(a.dimensions().size() - axes)) {
    for (int64_t axis : leading_) count_ *= axis;
    for (int64_t axis : own_) size_ *= axis;
  }
  // The numbers of sample i.
  const double* at(int64_t i, const Batch& batch, Border& border) const {
    return border.in(data_, single_, count_ == 1 ? 0 : place(i, batch) * size_, size_);
  }
  // Of one sample: how many numbers it has, and its axes.
  int64_t size() const { return size_; }
  size_t rank() const { return own_.size(); }
  int64_t axis(size_t k) const { return own_[k]; }

 private:
  int64_t place(int64_t i, const Batch& batch) const {
    int64_t index = 0, stride = 1;
    for (size_t k = leading_.size(); k-- > 0;) {
      const int64_t here = i % batch.dimensions[k];
      i /= batch.dimensions[k];
      if (leading_[k] > 1) index += here * stride;
      stride *= leading_[k];
    }
    return index;
  }
  const void* data_;
  bool single_;
  ffi::Span<const int64_t> leading_, own_;
  int64_t size_ = 1, count_ = 1;
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt

namespace xla::ffi {

template <> struct ArgDecoding<trajopt::Array> {
  static std::optional<trajopt::Array> Decode(XLA_FFI_ArgType type, void* argument, DiagnosticEngine& diagnostic) {
    const std::optional<AnyBuffer> buffer = ArgDecoding<AnyBuffer>::Decode(type, argument, diagnostic);
    if (!buffer) return std::nullopt;
    if (!trajopt::Array::allowed(*buffer)) return diagnostic.Emit("Wrong buffer dtype: expected F64 or F32");
    return trajopt::Array(*buffer);
  }
};
template <> struct RetDecoding<trajopt::Array> {
  static std::optional<Result<trajopt::Array>> Decode(XLA_FFI_RetType type, void* result, DiagnosticEngine& diagnostic) {
    std::optional<Result<AnyBuffer>> buffer = RetDecoding<AnyBuffer>::Decode(type, result, diagnostic);
    if (!buffer) return std::nullopt;
    if (!trajopt::Array::allowed(**buffer)) return diagnostic.Emit("Wrong buffer dtype: expected F64 or F32");
    return trajopt::Array(**buffer);
  }
};

}  // namespace xla::ffi
