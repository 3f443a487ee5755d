// What our headers say beyond the safetensors format, in `__metadata__` (client/core/image/header.h): where a piece
// lies in its whole tensor, and the other names of a tensor.
#ifndef CKPTD_DAEMON_FORMAT_IMAGE_NOTES_H_
#define CKPTD_DAEMON_FORMAT_IMAGE_NOTES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/core/image/parser.h"

namespace ckptd {

struct ImageNotes {
  std::map<std::string, std::vector<uint64_t>, std::less<>> offsets;     // by tensor; absent: whole, or at the start
  std::map<std::string, std::vector<std::string>, std::less<>> aliases;  // by stored tensor
};

// Foreign files have none. CORRUPT when the notes are there and not as we write them. `origin` begins the message.
[[nodiscard]] absl::StatusOr<ImageNotes> ReadImageNotes(const ImageInfo& image, absl::string_view origin);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_FORMAT_IMAGE_NOTES_H_
