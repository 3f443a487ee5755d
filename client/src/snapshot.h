// A snapshot offered by LOAD: a slot file and the record that describes it.
//
// The record is copied out of the ctl file and checked once. Bytes are read by descriptor, not through a mapping, so
// that a file cut short is an error and no SIGBUS; each block is summed while it is in the cache, so that copy and
// check are one pass over memory.
#ifndef CKPTD_CLIENT_SRC_SNAPSHOT_H_
#define CKPTD_CLIENT_SRC_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/wire/fds.h"
#include "client/include/ckpt/ckpt.h"
#include "client/src/image_headers.h"
#include "client/src/mapping.h"
#include "proto/local/messages.h"
#include "proto/local/region.h"

namespace ckptd {

// Used by one thread at a time.
class Snapshot {
 public:
  // 0 or a negative code with its sentence: CORRUPT, NEWER_VERSION, INTERNAL.
  static int32_t Open(const LoadMessage& load, UniqueFd slot, UniqueFd ctl, std::unique_ptr<Snapshot>* out);

  [[nodiscard]] const std::vector<ImageHeader>& headers() const { return headers_; }
  [[nodiscard]] uint64_t bytes() const { return slot_bytes_; }

  // ckpt_restore_read and ckpt_restore_map.
  int32_t Read(const ckpt_box* boxes, uint64_t count);
  int32_t Map(const void** address);

 private:
  int32_t TakeRecord(const LoadMessage& load, int ctl);
  int32_t ReadChunk(uint64_t chunk, const std::vector<ckpt_box>& boxes, size_t* first);
  int32_t ReadRange(uint64_t begin, uint64_t end, char* into, uint32_t* crc);

  UniqueFd slot_;
  uint64_t slot_bytes_ = 0;
  uint64_t chunk_bytes_ = 0;
  uint32_t header_crc_ = 0;
  std::vector<uint32_t> crcs_;
  std::vector<ImageHeader> headers_;
  std::vector<char> scratch_;  // for bytes of a chunk that the caller does not want
  Mapping mapping_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_SNAPSHOT_H_
