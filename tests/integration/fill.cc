#include "tests/integration/fill.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "client/core/copy/crc32c.h"
#include "client/core/copy/fill_check.h"
#include "proto/local/bell.h"

namespace ckptd::harness {
namespace {

// The bell, mapped.
class Mapped {
 public:
  explicit Mapped(int fd) {
    struct stat status {};
    if (fstat(fd, &status) != 0) return;
    bytes_ = static_cast<size_t>(status.st_size);
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  ~Mapped() {
    if (valid()) munmap(data_, bytes_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  [[nodiscard]] bool valid() const { return data_ != MAP_FAILED; }
  [[nodiscard]] BellHead& head() const { return *static_cast<BellHead*>(data_); }
  template <typename T>
  [[nodiscard]] T* At(uint64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + offset);
  }

 private:
  void* data_ = MAP_FAILED;
  size_t bytes_ = 0;
};

}  // namespace

std::string ImageHeader() {
  std::string json = R"({"weight":{"dtype":"F32","shape":[1024],"data_offsets":[0,4096]}})";
  json.resize(4096 - 8, ' ');
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + json;
}

std::string ImageOf(uint64_t step, uint64_t bytes) {
  std::string image = ImageHeader();
  image.resize(bytes, static_cast<char>(step));
  return image;
}

bool PassSave(int bell, uint64_t attempt, uint64_t step) {
  const Mapped memory(bell);
  if (!memory.valid()) return false;
  memory.head().pos_attempt.store(attempt);
  memory.head().pos.store(step);
  return true;
}

bool BeginFill(int bell, const FillOrder& order) {
  const Mapped memory(bell);
  if (!memory.valid()) return false;
  auto& slot = memory.At<BellSlot>(memory.head().slots_offset)[order.slot];
  slot.attempt.store(order.attempt);
  slot.step.store(order.step);
  return true;
}

bool CompleteFill(int bell, int slot_file, const FillOrder& order) {
  const Mapped memory(bell);
  const std::string image = ImageOf(order.step, order.slot_bytes);
  if (!memory.valid() || pwrite(slot_file, image.data(), image.size(), 0) != static_cast<ssize_t>(image.size()))
    return false;
  auto& slot = memory.At<BellSlot>(memory.head().slots_offset)[order.slot];
  slot.attempt.store(order.attempt);
  slot.step.store(order.step);
  slot.end_ns.store(
      static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count()));
  auto* row = memory.At<std::atomic<uint64_t>>(memory.head().chunks_offset) + order.slot * BellRow(order.chunk_count);
  FillCheck check(order.epoch, order.step, order.attempt);
  for (uint64_t chunk = 0; chunk < order.chunk_count; ++chunk) {
    const uint64_t from = chunk * order.chunk_bytes;
    const uint64_t size = std::min(order.chunk_bytes, order.slot_bytes - from);
    const uint32_t crc = Crc32c(0, image.data() + from, size);
    row[chunk].store(ChunkEntry(order.epoch, crc));
    check.Add(crc);
  }
  row[order.chunk_count].store(ChunkEntry(order.epoch, check.value()));
  uint64_t open = CaptureWord(order.epoch, CaptureState::kOpen);
  return slot.word.compare_exchange_strong(open, CaptureWord(order.epoch, CaptureState::kComplete));
}

}  // namespace ckptd::harness
