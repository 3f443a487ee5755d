// The result of everything in this room: ok, or what is wrong, where, and a sentence for a person.
#ifndef CKPTD_CLIENT_CORE_IMAGE_IMAGE_ERROR_H_
#define CKPTD_CLIENT_CORE_IMAGE_IMAGE_ERROR_H_

#include <cstdint>
#include <string>

namespace ckptd {

enum class ImageErrorKind : uint8_t {
  kOk,
  kTruncated,  // fewer bytes than the header claims
  kLimit,      // a limit of HeaderLimits or of the layout is exceeded
  kSyntax,     // not the JSON that the format allows
  kText,       // invalid UTF-8, or a broken escape
  kName,       // a reserved or otherwise impossible tensor name
  kDuplicate,  // a key, a chunk or an alias twice
  kField,      // a tensor entry lacks a field, or has one too many
  kDtype,      // unknown dtype
  kSize,       // shape, dtype and data_offsets contradict each other
  kOffsets,    // hole, overlap, trailing bytes
  kAlias,      // an alias of a tensor that is not there
  kRead,       // the caller's reader failed
};

struct [[nodiscard]] ImageError {
  ImageErrorKind kind = ImageErrorKind::kOk;
  uint64_t offset = 0;  // byte of the image (parser), index of the tensor (layout)
  std::string message;  // one sentence without a full stop, names quoted and clipped; empty when ok

  [[nodiscard]] bool ok() const { return kind == ImageErrorKind::kOk; }
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_IMAGE_IMAGE_ERROR_H_
