// The tokens of a header's JSON text, one at a time. Every function says false on an error, which error() then
// describes; the first error stays.
#ifndef CKPTD_CLIENT_CORE_IMAGE_SCANNER_H_
#define CKPTD_CLIENT_CORE_IMAGE_SCANNER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "client/core/image/image_error.h"

namespace ckptd {

class Scanner {
 public:
  // `text` begins at byte `base` of the image, for messages only.
  Scanner(std::string_view text, uint64_t base) : text_(text), base_(base) {}

  [[nodiscard]] bool Fail(ImageErrorKind kind, std::string message) {
    return FailAt(offset(), kind, std::move(message));
  }
  [[nodiscard]] bool FailAt(uint64_t offset, ImageErrorKind kind, std::string message);
  [[nodiscard]] const ImageError& error() const { return error_; }

  [[nodiscard]] uint64_t offset() const { return base_ + at_; }
  [[nodiscard]] std::string_view Rest() const { return text_.substr(at_); }

  // Consumes `c` with the white space before it; false without an error when something else stands there.
  [[nodiscard]] bool TryTake(char c);
  // The same, but something else is an error: "expected ':' after <where>".
  [[nodiscard]] bool Take(char c, std::string_view where);
  // Between two elements of an object or array: true with *more = whether ',' (another follows) or `close` stood there.
  [[nodiscard]] bool TakeSeparator(char close, std::string_view where, bool* more);

  // A string, decoded; above `max_bytes` (decoded) it is an error of kind kLimit.
  [[nodiscard]] bool String(std::string_view what, uint64_t max_bytes, std::string* out);
  // An unsigned integer without sign, fraction, exponent or leading zero, at most kMaxFormatNumber.
  [[nodiscard]] bool Number(std::string_view what, uint64_t* out);

 private:
  void SkipSpace();
  [[nodiscard]] bool Escape(std::string* out);
  [[nodiscard]] bool UnicodeEscape(std::string* out);
  [[nodiscard]] bool HexQuad(uint32_t* out);

  std::string_view text_;
  uint64_t base_;
  size_t at_ = 0;
  ImageError error_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_IMAGE_SCANNER_H_
