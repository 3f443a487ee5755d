// Copies ranges of a sealed slot into the caller's memory, host or GPU, and checks every chunk they touch in the same
// pass, by several threads.
//
// The slot is mapped, so a file that is shorter than its record says is refused before. Who cuts it while it is read
// kills the reader (SIGBUS): only processes of the job's own user can. Each block is summed while it is copied. For a
// GPU that copy goes into pinned memory, and the next one on while it is sent.
#ifndef CKPTD_CLIENT_SRC_SLOT_READER_H_
#define CKPTD_CLIENT_SRC_SLOT_READER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "client/core/wire/mapping.h"
#include "client/include/ckpt/ckpt.h"
#include "client/src/device_tensors.h"

namespace ckptd {

// A mapped slot, and what its record says of its bytes.
struct SlotChunks {
  const char* bytes = nullptr;
  uint64_t slot_bytes = 0;
  uint64_t chunk_bytes = 0;
  std::vector<uint32_t> crcs;
};

// Maps the slot for reading. 0 or a negative code with its sentence: CORRUPT when the file holds less than `bytes`.
int32_t MapSlot(int fd, uint64_t bytes, SharedMapping* out);

class SlotReader {
 public:
  // `slot` and `lanes` stay the caller's and outlive it. `on_read` is called behind each chunk, by any of the threads.
  SlotReader(const SlotChunks& slot, Lanes& lanes, std::function<void()> on_read)
      : slot_(slot), lanes_(lanes), on_read_(std::move(on_read)) {}

  // ckpt_restore_read: 0 or a negative code with its sentence. Everything has arrived when it returns.
  int32_t Read(const ckpt_box* boxes, uint64_t count);

  // Checks every chunk, copies nothing.
  int32_t Verify();

 private:
  friend class SlotReaderWorker;

  int32_t TakeBoxes(const ckpt_box* boxes, uint64_t count);
  int32_t FindLanes();
  int32_t FollowCallers();
  int32_t AwaitLanes();
  void ListChunks();
  int32_t RunWorkers();

  const SlotChunks& slot_;
  Lanes& lanes_;
  const std::function<void()> on_read_;
  std::vector<ckpt_box> boxes_;                   // by offset, disjoint
  std::vector<std::shared_ptr<Lane>> box_lanes_;  // of each box; null: host memory
  std::vector<std::shared_ptr<Lane>> used_;
  std::vector<uint64_t> chunks_;  // to read
  std::atomic<size_t> next_{0};   // of `chunks_`
  std::atomic<bool> failed_{false};
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_SLOT_READER_H_
