// Little-endian numbers in and out of byte strings. A reader that ran out, or has bytes left, says so at the end: no
// step in between has to be checked.
#ifndef CKPTD_DAEMON_TRANSPORT_WIRE_BYTES_H_
#define CKPTD_DAEMON_TRANSPORT_WIRE_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace ckptd::transport {

template <typename Number>
void PutNumber(std::string* out, Number value) {
  for (size_t i = 0; i < sizeof(Number); ++i)
    out->push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
}

class WireReader {
 public:
  explicit WireReader(absl::string_view bytes) : rest_(bytes) {}

  // 0 where there are not enough bytes.
  template <typename Number>
  [[nodiscard]] Number Take() {
    uint64_t value = 0;
    const absl::string_view bytes = TakeBytes(sizeof(Number));
    for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    return static_cast<Number>(value);
  }

  // Empty where there are not enough.
  [[nodiscard]] absl::string_view TakeBytes(size_t size) {
    if (size > rest_.size()) {
      short_ = true;
      rest_ = {};
      return {};
    }
    const absl::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  // Everything was there, and nothing is left.
  [[nodiscard]] bool Exact() const { return !short_ && rest_.empty(); }
  [[nodiscard]] size_t left() const { return rest_.size(); }

 private:
  absl::string_view rest_;
  bool short_ = false;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_WIRE_BYTES_H_
