// A snapshot offered by LOAD: a slot file and the record that describes it.
//
// The record is copied out of the ctl file and checked once; slot_reader.h reads the bytes.
#ifndef CKPTD_CLIENT_SRC_SNAPSHOT_H_
#define CKPTD_CLIENT_SRC_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/wire/fds.h"
#include "client/core/wire/mapping.h"
#include "client/include/ckpt/ckpt.h"
#include "client/src/image_headers.h"
#include "client/src/slot_reader.h"
#include "client/src/state.h"
#include "proto/local/messages.h"
#include "proto/local/region.h"

namespace ckptd {

// Used by one thread at a time.
class Snapshot {
 public:
  // 0 or a negative code with its sentence: CORRUPT, NEWER_VERSION, INTERNAL.
  static int32_t Open(const LoadMessage& load, UniqueFd slot, UniqueFd ctl, std::unique_ptr<Snapshot>* out);

  [[nodiscard]] const std::vector<ImageHeader>& headers() const { return headers_.images; }
  // What a document may have to fit into the layout of this snapshot.
  [[nodiscard]] uint64_t extra_bytes() const { return headers_.extra_bytes; }
  [[nodiscard]] uint64_t bytes() const { return chunks_.slot_bytes; }

  // ckpt_restore_read and ckpt_restore_map.
  int32_t Read(const ckpt_box* boxes, uint64_t count, State& state);
  int32_t Map(const void** address, State& state);

 private:
  int32_t TakeRecord(const LoadMessage& load, int ctl);

  SlotChunks chunks_;
  uint32_t header_crc_ = 0;
  ImageHeaders headers_;
  SharedMapping mapping_;
  bool verified_ = false;  // all of it: by the agent since it started, or by Map
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_SNAPSHOT_H_
