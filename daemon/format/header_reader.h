// The safetensors headers of a rank, checked. The parser and its rules are in client/core/image/parser.h; this adds
// what the agent's errors must say: whose header it is. No I/O of its own; any thread.
#ifndef CKPTD_DAEMON_FORMAT_HEADER_READER_H_
#define CKPTD_DAEMON_FORMAT_HEADER_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/core/image/image_error.h"
#include "client/core/image/parser.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"

namespace ckptd {

// What errors begin with: "job gpt rank 3". A path serves as well.
[[nodiscard]] std::string HeaderOrigin(absl::string_view job, Rank rank);

// The headers of a layout as a trainer registers it: of all images, back to back, in memory of our own (copied out of
// the sealed memfd). INVALID_ARGUMENT; REFUSED above a limit. The slot needs the sum of total_bytes.
[[nodiscard]] absl::StatusOr<std::vector<ImageInfo>> ReadLayoutHeaders(absl::string_view headers,
                                                                       uint64_t max_slot_bytes,
                                                                       absl::string_view origin,
                                                                       const HeaderLimits& limits = {});

// The images of a slot that exists, exactly `slot_bytes` long. CORRUPT; REFUSED above a limit; STORAGE_IO when `read`
// fails.
[[nodiscard]] absl::StatusOr<std::vector<ImageInfo>> ReadSlotHeaders(uint64_t slot_bytes, const ReadAt& read,
                                                                     absl::string_view origin,
                                                                     const HeaderLimits& limits = {});

// One file. `header` holds its first bytes, the whole header at least. Errors as ReadSlotHeaders.
[[nodiscard]] absl::StatusOr<ImageInfo> ReadFileHeader(absl::string_view header, uint64_t file_bytes,
                                                       absl::string_view origin, const HeaderLimits& limits = {});

// How many bytes of the file to read for that, from its first 8.
[[nodiscard]] absl::StatusOr<uint64_t> FileHeaderBytes(absl::string_view first_bytes, uint64_t file_bytes,
                                                       absl::string_view origin, const HeaderLimits& limits = {});

}  // namespace ckptd

#endif  // CKPTD_DAEMON_FORMAT_HEADER_READER_H_
